"""The masked diffusion loss on answers: mask at a random rate, predict what was masked, weigh by one over the rate."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dapd.lab.data import Rows
from dapd.models.transformer import Transformer

SMALLEST_RATE = 0.02
"""Below it most short answers have no mask at all, and a single mask would outweigh the rest of a batch."""


@dataclass(frozen=True)
class Noisy:
    """A batch of rows with a part of their answers masked."""

    tokens: Int[Tensor, "b l"]
    target: Int[Tensor, "b l"]
    weight: Float[Tensor, "b l"]
    """One over the masking rate at masked columns, 0 elsewhere; scaled by row."""


def add_noise(rows: Rows, mask_id: int, full_masked: float, generator: torch.Generator) -> Noisy:
    """Mask the answers (and the EOS after them) of a batch, each row at its own rate, uniform up to 1.

    A share `full_masked` of the rows is masked whole. Rows weigh by the root of their answer's length: a bundle of
    eight counts more than a list, but does not drown it.
    """
    target = rows.tokens.long()
    (n, length), device = target.shape, target.device
    answer = torch.arange(length, device=device) >= rows.start[:, None]
    # Evenly spread rates with one common offset: each is uniform, and a batch always sees all rates.
    t = (torch.arange(n, device=device) / n + torch.rand(1, device=device, generator=generator)) % 1.0
    rate = SMALLEST_RATE + (1 - SMALLEST_RATE) * t
    rate = torch.where(torch.rand(n, device=device, generator=generator) < full_masked, 1.0, rate)[:, None]
    masked: Bool[Tensor, "b l"] = (torch.rand(n, length, device=device, generator=generator) < rate) & answer
    scale = rows.answer.float().rsqrt()[:, None]
    return Noisy(torch.where(masked, mask_id, target), target, masked * scale / rate)


def weighted_loss(network: Transformer, noisy: Noisy) -> Float[Tensor, " b"]:
    """The weighed cross entropy of each row, summed over its columns; bf16 inside, fp32 outside."""
    everything, kind = slice(0, noisy.tokens.shape[1]), noisy.tokens.device.type
    with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
        logits = network(noisy.tokens, everything, everything).logits
    loss = F.cross_entropy(logits.float().flatten(0, 1), noisy.target.flatten(), reduction="none")
    return (loss.view_as(noisy.target) * noisy.weight).sum(-1)
