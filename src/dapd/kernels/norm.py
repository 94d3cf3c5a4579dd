"""RMSNorm together with the residual addition before it."""

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


def add_rms_norm(x: Float[Tensor, "*b d"], y: Float[Tensor, "*b d"], weight: Float[Tensor, " d"], eps: float) -> Added:
    """x + y and its norm: computed in fp32, cast back, then scaled. The order of casts is the checkpoints' own."""
    same = x.dtype == y.dtype == weight.dtype
    if usable(x, weight, y) and same and x.dtype in FLOATS:
        from dapd.kernels.jit.norm import add_rms_norm as kernel

        return kernel(x, y, weight, eps)
    total = x + y
    wide = total.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return Added(total, weight * (wide * scale).to(total.dtype))
