"""Columns of a canvas: the same slice for all rows, or a list of columns for each row."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

Span = slice | Int[Tensor, "b s"]
"""A slice names the same columns in every row. A tensor names the columns of each row, from left to right; a row with
fewer columns than the others repeats its last one, which changes nothing."""


def width(span: Span) -> int:
    """How many columns a span has in each row."""
    return span.stop - span.start if isinstance(span, slice) else span.shape[1]


def take(values: Tensor, span: Span, dim: int = 1) -> Tensor:
    """The span's columns of `values`, whose first dimension is the batch and whose dimension `dim` the columns."""
    if isinstance(span, slice):
        return values[(slice(None),) * dim + (span,)]
    shape = [span.shape[0], *[1] * (values.dim() - 1)]
    shape[dim] = span.shape[1]
    sizes = list(values.shape)
    sizes[dim] = span.shape[1]
    return values.gather(dim, span.view(shape).expand(sizes))


def locate(columns: Span, span: Span) -> Span:
    """Where in `span` each of `columns` stands. A column that the span lacks gets the place of some other one."""
    if isinstance(span, slice) and isinstance(columns, slice):
        return slice(columns.start - span.start, columns.stop - span.start)
    if isinstance(span, slice):
        return (columns - span.start).clamp(0, width(span) - 1)
    if isinstance(columns, slice):
        columns = as_tensor(columns, span)
    # Where the last column is repeated, its first place counts.
    return torch.searchsorted(span.contiguous(), columns.contiguous()).clamp_max(width(span) - 1)


def as_tensor(columns: slice, like: Tensor) -> Int[Tensor, "b s"]:
    """A slice as the columns of each row, for as many rows as `like` has."""
    return torch.arange(columns.start, columns.stop, device=like.device).expand(like.shape[0], -1)
