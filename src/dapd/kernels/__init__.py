"""Triton twins of hot functions. Each has a torch version beside it that is the reference and the fallback."""

from __future__ import annotations

import os
from functools import cache

from torch import Tensor


@cache
def _triton() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


def interpreted() -> bool:
    """Whether Triton runs its kernels on the CPU, statement by statement (TRITON_INTERPRET=1), as the tests do."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def usable(tensor: Tensor) -> bool:
    """Whether the kernels can take this tensor: one on a CUDA device, or any under the interpreter."""
    return (tensor.is_cuda or interpreted()) and _triton()
