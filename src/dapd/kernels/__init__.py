"""Triton twins of hot functions. Each has a torch version beside it that is the reference and the fallback."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import torch
from torch import Tensor

FLOATS = (torch.bfloat16, torch.float16, torch.float32)
"""What the kernels that work on activations compute with; anything else goes the torch way."""

_enabled = ContextVar("dapd_kernels", default=True)


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
    """Whether the kernels can take this tensor: one on a CUDA device, or any under the interpreter.

    They have no backward pass, and they know nothing of autocast: training goes the torch way.
    """
    if tensor.requires_grad or not (tensor.is_cuda or interpreted()):
        return False
    return _enabled.get() and not torch.is_autocast_enabled(tensor.device.type) and _triton()


def head_size_fits(size: int) -> bool:
    """Whether the attention kernels take heads of this size: powers of two, large enough for the matrix units."""
    return 16 <= size <= 256 and size & (size - 1) == 0


@contextmanager
def disabled() -> Iterator[None]:
    """The torch versions instead of the kernels, for comparisons."""
    token = _enabled.set(False)
    try:
        yield
    finally:
        _enabled.reset(token)
