"""The masked diffusion loss on answers: mask at a random rate, predict what was masked, weigh by one over the rate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dapd.lab.data import Rows
from dapd.models.transformer import Transformer

SMALLEST_RATE = 0.02
"""Smallest masking rate; below it most short answers would have no mask at all."""


@dataclass(frozen=True)
class Noisy:
    """A batch of rows with a part of their answers masked.

    Only masked positions are predicted, and `at` lists them. The list has the same length for every batch of one shape,
    because CUDA graphs need fixed shapes: it is filled up with positions that are not masked, whose weight is 0.
    """

    tokens: Int[Tensor, "b l"]
    at: Int[Tensor, " m"]
    """Positions to predict, as indices into the flattened batch."""
    target: Int[Tensor, " m"]
    weight: Float[Tensor, " m"]


def add_noise(rows: Rows, mask_id: int, full_masked: float, generator: torch.Generator, most: int = 0) -> Noisy:
    """Mask the answers (and the EOS after them) of a batch, each row at its own rate, drawn uniformly up to 1.

    In a share `full_masked` of the rows the whole answer is masked. A row's loss is the mean over its masks times the
    number of columns from the answer on, which is the bound on the likelihood, divided by the square root of the
    answer's length: a quiz of eight questions then counts more than a short list, but does not drown it out. At most
    `most` masks are predicted; 0: all of them.
    """
    target = rows.tokens.long()
    n, length = target.shape
    device = target.device
    answer = torch.arange(length, device=device) >= rows.start[:, None]
    # Evenly spread rates with one common offset: each is uniform, and a batch always sees all rates.
    t = (torch.arange(n, device=device) / n + torch.rand(1, device=device, generator=generator)) % 1.0
    rate = SMALLEST_RATE + (1 - SMALLEST_RATE) * t
    rate = torch.where(torch.rand(n, device=device, generator=generator) < full_masked, 1.0, rate)[:, None]
    masked: Bool[Tensor, "b l"] = (torch.rand(n, length, device=device, generator=generator) < rate) & answer
    scale = answer.sum(-1) / masked.sum(-1).clamp_min(1) / rows.answer.float().sqrt()
    at = _chosen_first(masked.flatten())[: most or n * length]
    weight = (masked * scale[:, None]).flatten()
    return Noisy(torch.where(masked, mask_id, target), at, target.flatten()[at], weight[at])


def _chosen_first(chosen: Bool[Tensor, " n"]) -> Int[Tensor, " n"]:
    """The indices of all positions, those of the chosen ones first. No index occurs twice, because duplicates would
    slow the gradient down."""
    count = chosen.cumsum(0)
    others = (~chosen).cumsum(0)
    place = torch.where(chosen, count - 1, count[-1] + others - 1)
    return torch.empty_like(place).scatter_(0, place, torch.arange(len(chosen), device=chosen.device))


@contextmanager
def _headless(network: Transformer) -> Iterator[nn.Linear]:
    """Make the network return its last hidden states in place of logits, and yield the head that was taken off."""
    head = network.head
    network.head = nn.Identity()  # type: ignore[assignment]
    try:
        yield head
    finally:
        network.head = head


Entropy = Callable[[Tensor, Tensor, Tensor], Tensor]
"""`cross_entropy` or its compiled version."""


def cross_entropy(
    hidden: Float[Tensor, "m d"], head: Float[Tensor, "v d"], target: Int[Tensor, " m"]
) -> Float[Tensor, " m"]:
    """Minus the log-probability of each target, in fp32."""
    logits = F.linear(hidden, head).float()
    return logits.logsumexp(-1) - logits.gather(-1, target[:, None]).squeeze(-1)


def losses(
    network: Transformer, noisy: Noisy, entropy: Entropy = cross_entropy, *, autocast: bool = False
) -> Float[Tensor, " m"]:
    """The weighted cross entropy at every position to predict, in fp32; with `autocast` products are taken in bf16."""
    everything = slice(0, noisy.tokens.shape[1])
    with torch.autocast(noisy.tokens.device.type, torch.bfloat16, enabled=autocast), _headless(network) as head:
        hidden = network(noisy.tokens, everything, everything).logits.flatten(0, 1)
        return entropy(hidden.index_select(0, noisy.at), head.weight, noisy.target) * noisy.weight
