"""Attention captured from the layers of a pass: exp(q k^T / sqrt(d) - lse), added up over heads and layers."""

from __future__ import annotations

import itertools

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dapd.kernels import FLOATS, attention, head_size_fits, usable


class AttentionSum:
    """The attention from some queries to some keys, added up over the heads of the captured layers."""

    def __init__(self) -> None:
        self._sums: Float[Tensor, "parts b n k"] | None = None
        self._terms = 0

    def add(
        self,
        q: Float[Tensor, "b h n d"],
        k: Float[Tensor, "b g k d"],
        lse: Float[Tensor, "b h n"],
        valid: Bool[Tensor, "b k"] | None,
    ) -> None:
        """Add a layer: its queries, its keys, and the log of each query's softmax denominator over all keys."""
        self._terms += q.shape[1]
        if usable(q, k, lse) and q.dtype in FLOATS and head_size_fits(q.shape[-1]):
            from dapd.kernels.jit.capture import accumulate

            self._sums = accumulate(self._sums, q, k, lse, valid)
            return
        if q.device.type == "cpu" and q.shape[2] * k.shape[2] >= BY_ROWS:
            self._sums = add_by_rows(self._sums, q, k, lse, valid)
            return
        total = head_sum(q, k, lse, valid)[None]
        self._sums = total if self._sums is None else self._sums + total

    def mean(self) -> Float[Tensor, "b n k"] | None:
        """The mean over heads and layers, in fp32; None where nothing was added."""
        if self._sums is None:
            return None
        total = self._sums[0] if len(self._sums) == 1 else self._sums.sum(0)
        return total / self._terms


BY_ROWS = 1 << 16
"""Pairs of a query and a key from which a CPU works on a few queries at a time: their scores stay in its cache until
they are added up, and no head's whole matrix is ever in memory."""
CACHED = 1 << 18
"""Number of scores that `add_by_rows` works on at a time."""


def add_by_rows(
    sums: Float[Tensor, "1 b n k"] | None,
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b g k d"],
    lse: Float[Tensor, "b h n"],
    valid: Bool[Tensor, "b k"] | None,
) -> Float[Tensor, "1 b n k"]:
    """Add the sum over heads of exp(score - lse) to `sums` in place, in fp32; None: begin with zeros."""
    wide = torch.promote_types(q.dtype, torch.float32)
    (batch, heads, n, size), (_, groups, columns, _) = q.shape, k.shape
    if sums is None:
        sums = q.new_zeros((1, batch, n, columns), dtype=torch.float32)
    queries = q.to(wide) * size**-0.5
    keys = k.to(wide).mT
    shift = -lse.to(wide)[..., None]
    height = max(1, CACHED // columns)
    room = torch.empty((height, columns), dtype=wide, device=q.device)
    for row, first in itertools.product(range(batch), range(0, n, height)):
        rows = slice(first, min(n, first + height))
        total = sums[0, row, rows]
        weight = room[: rows.stop - first]
        for head in range(heads):
            key = keys[row, head * groups // heads]
            torch.addmm(shift[row, head, rows], queries[row, head, rows], key, out=weight).exp_()
            total += weight if valid is None else weight.masked_fill_(~valid[row], 0.0)
    return sums


def head_sum(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b g k d"],
    lse: Float[Tensor, "b h n"],
    valid: Bool[Tensor, "b k"] | None,
) -> Float[Tensor, "b n k"]:
    """The sum over heads of exp(score - lse), in fp32; columns that are not valid get 0."""
    (batch, n_heads, n, _), (_, groups, columns, _) = q.shape, k.shape
    shared = n_heads // groups
    step = max(1, attention.ELEMENTS // max(1, batch * shared * n * columns))
    total = q.new_zeros((batch, n, columns), dtype=torch.float32)
    for first in range(0, groups, step):
        heads = slice(first * shared, (first + step) * shared)
        weight = (attention.scores(q[:, heads], k[:, first : first + step]) - lse[:, heads, :, None]).exp()
        total = total + weight.sum(1).float()
    return total if valid is None else total.masked_fill(~valid[:, None, :], 0.0)
