"""RMSNorm, alone or together with the residual addition before it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from dapd.kernels import FLOATS, usable


class Added(NamedTuple):
    """A sum and its normalised form."""

    total: Float[Tensor, "*b d"]
    normed: Float[Tensor, "*b d"]


def rms_norm(x: Float[Tensor, "*b d"], weight: Float[Tensor, " d"], eps: float) -> Float[Tensor, "*b d"]:
    """Normalise in fp32, cast back, then scale: the order of casts is the checkpoints' own."""
    if _fits(x, weight):
        from dapd.kernels.jit.norm import rms_norm as kernel

        return kernel(x, None, weight, eps).normed
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def add_rms_norm(x: Float[Tensor, "*b d"], y: Float[Tensor, "*b d"], weight: Float[Tensor, " d"], eps: float) -> Added:
    """x + y, and its norm."""
    if _fits(x, weight, y) and y.dtype == x.dtype:
        from dapd.kernels.jit.norm import rms_norm as kernel

        return kernel(x, y, weight, eps)
    total = x + y
    return Added(total, rms_norm(total, weight, eps))


def _fits(x: Tensor, weight: Tensor, *others: Tensor) -> bool:
    return usable(x, weight, *others) and x.dtype in FLOATS and weight.dtype == x.dtype
