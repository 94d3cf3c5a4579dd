"""Rotary embedding: a program turns some heads of one token, where they lie or on their way into a cache."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from dapd.kernels import overlapped
from dapd.kernels.rotary import Kept

HEADS = 16
"""Heads per program."""


@triton.jit
def _rotate(
    packed, cos, sin, keys, values, columns, length, width, table_batch, n_q, n_kv,
    kept_batch, kept_head, kept_row, columns_batch, first,
    HALF: tl.constexpr, HEADS: tl.constexpr, KEPT: tl.constexpr, NAMED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    batch, row = token // length, token % length
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    size = tl.arange(0, HALF)
    # Both halves of the tables are alike: the first is enough.
    table = batch * table_batch + row * 2 * HALF + size
    c = tl.load(cos + table).to(tl.float32)[None, :]
    s = tl.load(sin + table).to(tl.float32)[None, :]
    at = packed + token * width + head[:, None] * 2 * HALF + size[None, :]
    is_query, is_value = (head < n_q)[:, None], (head >= n_q + n_kv)[:, None]
    inside = (head < n_q + (2 if KEPT else 1) * n_kv)[:, None]
    left = tl.load(at, inside, other=0.0).to(tl.float32)
    right = tl.load(at + HALF, inside, other=0.0).to(tl.float32)
    # Every product is rounded to the tables' dtype: Dream's rotation in bf16 comes out as the torch version has it.
    kind = cos.dtype.element_ty
    lc, rs = (left * c).to(kind).to(tl.float32), (right * s).to(kind).to(tl.float32)
    rc, ls = (right * c).to(kind).to(tl.float32), (left * s).to(kind).to(tl.float32)
    to = packed.dtype.element_ty
    turned_left, turned_right = (lc - rs).to(to), (rc + ls).to(to)
    if KEPT:
        column = tl.load(columns + batch * columns_batch + row) if NAMED else first + row
        line = batch * kept_batch + column * kept_row + size[None, :]
        is_key = inside & ~is_query & ~is_value
        key = keys + line + (head - n_q)[:, None] * kept_head
        value = values + line + (head - n_q - n_kv)[:, None] * kept_head
        tl.store(at, turned_left, is_query)
        tl.store(at + HALF, turned_right, is_query)
        tl.store(key, turned_left, is_key)
        tl.store(key + HALF, turned_right, is_key)
        tl.store(value, left.to(to), inside & is_value)
        tl.store(value + HALF, right.to(to), inside & is_value)
    else:
        tl.store(at, turned_left, inside)
        tl.store(at + HALF, turned_right, inside)


def rotate_in_place(packed: Tensor, counts: tuple[int, int], cos: Tensor, sin: Tensor, kept: Kept | None) -> None:
    """Rotate queries and keys of every token, or the queries alone: then the keys, rotated, and the values are kept.

    One table for all rows, or one each.
    """
    batch, length, width = packed.shape
    cos, sin = cos.contiguous(), sin.contiguous()
    named = kept is not None and isinstance(kept.columns, Tensor)
    columns = kept.columns.contiguous() if kept is not None and isinstance(kept.columns, Tensor) else packed
    first = kept.columns.start if kept is not None and isinstance(kept.columns, slice) else 0
    n_q, n_kv = counts
    _rotate[(batch * length, triton.cdiv(n_q + (1 if kept is None else 2) * n_kv, HEADS))](
        packed, cos, sin, packed if kept is None else kept.k, packed if kept is None else kept.v, columns,
        length, width, 0 if cos.shape[0] == 1 else cos.stride(0), n_q, n_kv,
        *((0, 0, 0) if kept is None else kept.k.stride()[:3]), columns.stride(0) if named else 0, first,
        HALF=cos.shape[-1] // 2, HEADS=HEADS, KEPT=kept is not None, NAMED=named, num_warps=4, **overlapped(packed),
    )  # fmt: skip
