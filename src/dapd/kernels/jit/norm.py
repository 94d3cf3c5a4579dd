"""RMSNorm: one program per row, which it holds in its registers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dapd.kernels import dependent_launch
from dapd.kernels.norm import Added


@triton.jit
def _add_rms_norm(x, y, weight, total, out, size, eps, BLOCK: tl.constexpr, PDL: tl.constexpr):
    if PDL:
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64) * size
    column = tl.arange(0, BLOCK)
    inside = column < size
    value = tl.load(x + row + column, inside, other=0.0).to(tl.float32)
    other = tl.load(y + row + column, inside, other=0.0).to(tl.float32)
    # Rounded to the model's dtype before it is normalised: that sum is what the residual stream holds.
    value = (value + other).to(x.dtype.element_ty)
    tl.store(total + row + column, value, inside)
    wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide) / size + eps)
    normed = (wide * scale).to(x.dtype.element_ty).to(tl.float32)
    factor = tl.load(weight + column, inside, other=0.0).to(tl.float32)
    tl.store(out + row + column, (factor * normed).to(x.dtype.element_ty), inside)


def add_rms_norm(x: Tensor, y: Tensor, weight: Tensor, eps: float) -> Added:
    """The sum of x and y, and its norm."""
    x = x.contiguous()
    size = x.shape[-1]
    total = torch.empty_like(x)
    out = torch.empty_like(x)
    block = triton.next_power_of_2(size)
    _add_rms_norm[(x.numel() // size,)](
        x,
        y.contiguous(),
        weight,
        total,
        out,
        size,
        eps,
        BLOCK=block,
        num_warps=min(16, max(1, block // 512)),
        **dependent_launch(x),
    )
    return Added(total, out)
