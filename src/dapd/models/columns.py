"""Which columns of a canvas a pass computes: a slice, the same for all rows, or a set of columns for each row."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Span = slice | Int[Tensor, "b s"]


def take(values: Tensor, span: Span) -> Tensor:
    """The span's columns of what has a value per row and column."""
    return values[:, span] if isinstance(span, slice) else values.gather(1, span)


def place(span: Int[Tensor, "b s"], length: int) -> tuple[Int[Tensor, "b l"], Bool[Tensor, "b l"]]:
    """Where in the span each column of the canvas stands, and whether it does (else: at 0)."""
    found = torch.full((len(span), length), -1, device=span.device, dtype=span.dtype)
    slot = torch.arange(span.shape[1], device=span.device).expand_as(span)
    # A column that is named twice has the same value in both places; amax makes the choice a fixed one.
    found = found.scatter_reduce(1, span, slot, "amax")
    return found.clamp_min(0), found >= 0


def spread(x: Float[Tensor, "b s d"], slot: Int[Tensor, "b n"], known: Bool[Tensor, "b n"]) -> Float[Tensor, "b n d"]:
    """What was computed for the span, at the columns of `place`; zeros where the span has them not."""
    return torch.where(known[..., None], x.gather(1, slot[..., None].expand(-1, -1, x.shape[-1])), 0)
