"""How likely a continuation is under a masked diffusion model: LLaDA's Monte-Carlo estimate.

l of the L continuation tokens are masked, l uniform over 1..L; L / l times the log-probability of the masked tokens,
averaged over such maskings, is an unbiased estimate of a lower bound of the log-likelihood.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dapd.models.base import MaskedLM

ROWS = 32
"""How many random maskings of an answer share a forward pass."""


@torch.inference_mode()
def log_likelihood(
    network: MaskedLM, context: Sequence[int], continuation: Sequence[int], samples: int, seed: int
) -> float:
    """The estimate from `samples` maskings. Their sizes are spread evenly over 1..L, from a random start."""
    n = len(continuation)
    if n == 0:
        return 0.0
    generator = torch.Generator().manual_seed(seed)
    row = torch.tensor([*context, *continuation], device=network.device)
    window = slice(len(context), len(row))
    start = int(torch.randint(n, (), generator=generator))
    sizes = (start + (torch.arange(samples) * n / samples).round().long()) % n + 1
    order = torch.stack([torch.randperm(n, generator=generator) for _ in range(samples)])
    masked = order < sizes[:, None]
    total = torch.zeros((), dtype=torch.float64)
    for first in range(0, samples, ROWS):
        part = masked[first : first + ROWS].to(network.device)
        size = sizes[first : first + ROWS]
        total += (_masked_log_probs(network, row, window, part).cpu() * (n / size)).sum()
    return float(total / samples)


def _masked_log_probs(network: MaskedLM, row: Tensor, window: slice, masked: Tensor) -> Tensor:
    """The summed log-probability of the masked tokens, per masking."""
    tokens = row.expand(len(masked), -1).clone()
    target = tokens[:, window].clone()
    tokens[:, window] = target.masked_fill(masked, network.profile.mask_id)
    logits = network(tokens, slice(0, len(row)), window).logits
    log_probs = logits.float().log_softmax(-1).gather(-1, target[..., None])[..., 0]
    return (log_probs.double() * masked).sum(-1)
