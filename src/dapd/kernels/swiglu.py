"""SwiGLU of a packed projection."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from dapd.kernels import FLOATS, usable


def swiglu(packed: Float[Tensor, "*b two_m"]) -> Float[Tensor, "*b m"]:
    """silu(gate) * up, where the gate is the first half of the columns."""
    if usable(packed) and packed.dtype in FLOATS:
        from dapd.kernels.jit.swiglu import swiglu as kernel

        return kernel(packed)
    gate, up = packed.chunk(2, -1)
    return F.silu(gate) * up
