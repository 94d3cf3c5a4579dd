"""Quantisation to fp8: one program per row, which it reads once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dapd.kernels import dependent_launch
from dapd.kernels.fp8 import E4M3_MAX, SMALLEST_SCALE, Quantised


@triton.jit
def _quantise(
    x, value, scale, size, E4M3_MAX: tl.constexpr, SMALLEST: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    if PDL:
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < size
    wide = tl.load(x + row * size + column, inside, other=0.0).to(tl.float32)
    factor = tl.maximum(tl.max(tl.abs(wide)) / E4M3_MAX, SMALLEST)
    scaled = tl.minimum(tl.maximum(wide / factor, -E4M3_MAX), E4M3_MAX)
    tl.store(value + row * size + column, scaled.to(value.dtype.element_ty), inside)
    tl.store(scale + row, factor)


def quantise(x: Tensor) -> Quantised:
    x, (rows, size) = x.contiguous(), x.shape
    value = x.new_empty((rows, size), dtype=torch.float8_e4m3fn)
    scale = x.new_empty((rows, 1), dtype=torch.float32)
    block = triton.next_power_of_2(size)
    _quantise[(rows,)](
        x,
        value,
        scale,
        size,
        E4M3_MAX=E4M3_MAX,
        SMALLEST=SMALLEST_SCALE,
        BLOCK=block,
        num_warps=min(16, max(1, block // 512)),
        **dependent_launch(x),
    )
    return Quantised(value, scale)
