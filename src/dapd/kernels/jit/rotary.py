"""Rotary embedding: each program rotates some heads of one token in place."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from dapd.kernels import dependent_launch

HEADS = 16
"""How many heads one program rotates."""


@triton.jit
def _rotate(
    packed, cos, sin, length, width, table_batch, n_heads,
    HALF: tl.constexpr, HEADS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
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
    inside = (head < n_heads)[:, None]
    left = tl.load(at, inside, other=0.0).to(tl.float32)
    right = tl.load(at + HALF, inside, other=0.0).to(tl.float32)
    # Every product is rounded to the tables' dtype: Dream's rotation in bf16 comes out as the torch version has it.
    kind = cos.dtype.element_ty
    lc, rs = (left * c).to(kind).to(tl.float32), (right * s).to(kind).to(tl.float32)
    rc, ls = (right * c).to(kind).to(tl.float32), (left * s).to(kind).to(tl.float32)
    to = packed.dtype.element_ty
    tl.store(at, (lc - rs).to(to), inside)
    tl.store(at + HALF, (rc + ls).to(to), inside)


def rotate_in_place(packed: Tensor, n_heads: int, cos: Tensor, sin: Tensor) -> None:
    """Rotate the first `n_heads` heads of every token; one table for all rows, or one each."""
    batch, length, width = packed.shape
    cos, sin = cos.contiguous(), sin.contiguous()
    _rotate[(batch * length, triton.cdiv(n_heads, HEADS))](
        packed, cos, sin, length, width, 0 if cos.shape[0] == 1 else cos.stride(0), n_heads,
        HALF=cos.shape[-1] // 2, HEADS=HEADS, num_warps=4, **dependent_launch(packed),
    )  # fmt: skip
