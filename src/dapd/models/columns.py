"""Columns of a canvas: the same slice for all rows, or a list of columns for each row."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

Span = slice | Int[Tensor, "_ _"]
"""A slice names the same columns in every row. A tensor names the columns of each row, from left to right; a row with
fewer columns than the others repeats its last one, which changes nothing."""


def width(span: slice | Int[Tensor, "*_ n"]) -> int:
    """The number of columns in each row."""
    return span.stop - span.start if isinstance(span, slice) else span.shape[-1]


def take(values: Tensor, columns: Span, dim: int = 1, of: Span | None = None) -> Tensor:
    """Some columns of `values`, whose first dimension is the batch and whose dimension `dim` the columns.

    `of` names the columns that `values` has (None: all columns of the canvas). For a column that it lacks the result is
    that of some other column.
    """
    if of is columns:
        return values
    if of is not None:
        columns = _places(columns, of, values)
    if isinstance(columns, slice):
        return values[(slice(None),) * dim + (columns,)]
    shape = [len(columns), *[1] * (values.dim() - 1)]
    shape[dim] = columns.shape[1]
    sizes = [*values.shape]
    sizes[dim] = columns.shape[1]
    return values.gather(dim, columns.view(shape).expand(sizes))


def _places(columns: Span, of: Span, like: Tensor) -> Span:
    """The index in `of` of each of the columns."""
    if isinstance(of, slice) and isinstance(columns, slice) and of.start <= columns.start and columns.stop <= of.stop:
        return slice(columns.start - of.start, columns.stop - of.start)
    if isinstance(columns, slice):
        columns = as_tensor(columns, like)
    if isinstance(of, slice):
        places: Tensor = (columns - of.start).clamp(0, width(of) - 1)
        return places
    # Where the last column is repeated, its first place counts.
    return torch.searchsorted(of.contiguous(), columns.contiguous()).clamp_max(width(of) - 1)


def as_tensor(columns: slice, like: Tensor) -> Int[Tensor, "_ _"]:
    """A slice as the columns of each row, for as many rows as `like` has."""
    return torch.arange(columns.start, columns.stop, device=like.device).expand(like.shape[0], -1)
