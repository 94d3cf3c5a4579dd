"""Matrices of 8-bit floats (e4m3) with a scale for each row: the operands of fp8 matrix products."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from dapd.kernels import FLOATS, usable

E4M3_MAX = 448.0
"""Largest finite float8_e4m3fn."""
SMALLEST_SCALE = 1e-12
"""Lower bound of a scale: a row of zeros must not be divided by zero."""


class Quantised(NamedTuple):
    """A quantised matrix: value * scale is about the original."""

    value: Float[Tensor, "n k"]
    scale: Float[Tensor, "n 1"]


def quantise(x: Float[Tensor, "n k"]) -> Quantised:
    """Each row scaled so that its largest magnitude becomes E4M3_MAX, and rounded to fp8."""
    if usable(x) and x.dtype in FLOATS:
        from dapd.kernels.jit.fp8 import quantise as kernel

        return kernel(x)
    wide = x.float()
    scale = (wide.abs().amax(-1, keepdim=True) / E4M3_MAX).clamp_min(SMALLEST_SCALE)
    return Quantised((wide / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn), scale)


def product(x: Quantised, weight: Quantised, dtype: torch.dtype) -> Float[Tensor, "n m"]:
    """x weight^T in `dtype`."""
    if x.value.is_cuda:
        return torch._scaled_mm(x.value, weight.value.T, x.scale, weight.scale.T, out_dtype=dtype, use_fast_accum=True)
    return ((x.value.float() @ weight.value.float().T) * x.scale * weight.scale.T).to(dtype)
