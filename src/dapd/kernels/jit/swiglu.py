"""SwiGLU: each program takes one row's two halves for a block of columns."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from dapd.kernels import dependent_launch


@triton.jit
def _swiglu(packed, out, size, BLOCK: tl.constexpr, PDL: tl.constexpr):
    if PDL:
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    gate = tl.load(packed + row * 2 * size + column, inside, other=0.0).to(tl.float32)
    up = tl.load(packed + row * 2 * size + size + column, inside, other=0.0).to(tl.float32)
    # silu is rounded before the product, as two separate operations would round it.
    silu = (gate / (1.0 + tl.exp(-gate))).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * size + column, (silu * up).to(out.dtype.element_ty), inside)


def swiglu(packed: Tensor) -> Tensor:
    packed, size = packed.contiguous(), packed.shape[-1] // 2
    out = packed.new_empty((*packed.shape[:-1], size))
    block = min(1024, triton.next_power_of_2(size))
    grid = (out.numel() // size, triton.cdiv(size, block))
    _swiglu[grid](packed, out, size, BLOCK=block, num_warps=4, **dependent_launch(packed))
    return out
