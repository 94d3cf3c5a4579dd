"""The sum over heads of exp(q k^T / sqrt(d) - lse).

A window of a few hundred columns makes too few tiles to fill a GPU, so the heads are cut into parts too. Each program
owns a tile of one part and adds to it layer by layer: no atomics, the same sum in every run.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dapd.kernels import dependent_launch

PROGRAMS = 128
"""Heads are cut into parts until there are this many programs, about one for each multiprocessor of a large GPU."""


@triton.jit
def _accumulate(
    q, k, lse, valid, sums, n, m, scale, batches,
    q_batch, q_head, q_row, k_batch, k_head, k_row, lse_batch, lse_head, lse_row, valid_batch,
    SHARED: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    FIRST: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_wait()
    batch, part = tl.program_id(1).to(tl.int64), tl.program_id(2)
    across = tl.cdiv(m, BLOCK)
    row = (tl.program_id(0) // across) * BLOCK + tl.arange(0, BLOCK)
    column = (tl.program_id(0) % across) * BLOCK + tl.arange(0, BLOCK)
    size = tl.arange(0, D)
    row_inside, column_inside = row < n, column < m
    q_at = q + batch * q_batch + row[:, None] * q_row + size[None, :]
    k_at = k + batch * k_batch + column[None, :] * k_row + size[:, None]
    lse_at = lse + batch * lse_batch + row * lse_row
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for i in range(HEADS):
        head = part * HEADS + i
        queries = tl.load(q_at + head * q_head, row_inside[:, None], other=0.0)
        keys = tl.load(k_at + (head // SHARED) * k_head, column_inside[None, :], other=0.0)
        denominator = tl.load(lse_at + head * lse_head, row_inside, other=0.0).to(tl.float32)
        total += tl.exp(tl.dot(queries, keys, input_precision=PRECISION) * scale - denominator[:, None])
    if PADDED:
        seen = tl.load(valid + batch * valid_batch + column, column_inside, other=0)
        total = tl.where((seen != 0)[None, :], total, 0.0)
    at = sums + (part * batches + batch) * n * m + row[:, None] * m + column[None, :]
    inside = row_inside[:, None] & column_inside[None, :]
    if not FIRST:
        total += tl.load(at, inside, other=0.0)
    tl.store(at, total, inside)


def accumulate(sums: Tensor | None, q: Tensor, k: Tensor, lse: Tensor, valid: Tensor | None) -> Tensor:
    """Add a layer to `sums` in place (None: begin), a buffer of [parts, batch, rows, columns]."""
    (batch, heads, n, d), m = q.shape, k.shape[2]
    block = 32 if q.dtype == torch.float32 else 64
    tiles = triton.cdiv(n, block) * triton.cdiv(m, block)
    first = sums is None
    if sums is None:
        sums = q.new_empty((parts_of(heads, tiles * batch), batch, n, m), dtype=torch.float32)
    mask = None if valid is None else valid.view(torch.uint8)
    _accumulate[(tiles, batch, sums.shape[0])](
        q, k, lse, q if mask is None else mask, sums, n, m, d**-0.5, batch,
        *q.stride()[:3], *k.stride()[:3], *lse.stride(), 0 if mask is None else mask.stride(0),
        SHARED=heads // k.shape[1], HEADS=heads // sums.shape[0], D=d, BLOCK=block,
        FIRST=first, PADDED=mask is not None, PRECISION="ieee", num_warps=4, num_stages=2,
        **dependent_launch(q),
    )  # fmt: skip
    return sums


def parts_of(heads: int, programs: int) -> int:
    """The number of parts: the smallest divisor of `heads` that makes PROGRAMS programs, or else `heads`."""
    return next((p for p in range(1, heads + 1) if heads % p == 0 and p * programs >= PROGRAMS), heads)
