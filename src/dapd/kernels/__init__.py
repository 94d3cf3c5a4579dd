"""Triton kernels for the hot functions. Each has a torch version that is the reference and the fallback.

The torch version is in the same module as the call of the kernel, or where the function belongs: the independent set
in `dapd.graph`, confidence in `dapd.decoding.sampling`. Attention itself is torch's; only the parts that torch lacks
are written here. `cuda_graph.py` records whole passes, which are made of torch's kernels and these.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import torch
from torch import Tensor

FLOATS = (torch.bfloat16, torch.float16, torch.float32)
"""Dtypes that the kernels for activations take; tensors of any other dtype go to the torch versions."""

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


def usable(tensor: Tensor, *others: Tensor) -> bool:
    """Whether the kernels can take these tensors: on a CUDA device, or on any under the interpreter.

    They have no backward pass and ignore autocast, so training uses the torch versions.
    """
    if torch.is_grad_enabled() and any(one.requires_grad for one in (tensor, *others)):
        return False
    if not (tensor.is_cuda or interpreted()):
        return False
    return _enabled.get() and not torch.is_autocast_enabled(tensor.device.type) and _triton()


def dependent_launch(tensor: Tensor) -> dict[str, bool]:
    """Launch options of every kernel: programmatic dependent launch (PDL) from Hopper on.

    Each kernel is launched before the previous one has ended and waits for it inside, which hides the launch time.
    """
    available = tensor.is_cuda and not interpreted() and _has_dependent_launch(tensor.device)
    return {"PDL": True, "launch_pdl": True} if available else {"PDL": False}


@cache
def _has_dependent_launch(device: torch.device) -> bool:
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0)


def head_size_fits(size: int) -> bool:
    """Whether the attention kernels take heads of this size: powers of two, large enough for the matrix units."""
    return 16 <= size <= 256 and size & (size - 1) == 0


def mode(device: torch.device) -> tuple[object, ...]:
    """All settings of the process that change how tensors are computed: a recording is valid for one such mode."""
    cast = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
    # Not torch.get_float32_matmul_precision, which fails where the precision was set for one backend.
    precision = getattr(torch.backends.cuda.matmul, "fp32_precision", None) or torch.get_float32_matmul_precision()
    return _enabled.get(), cast, torch.are_deterministic_algorithms_enabled(), precision, *_attention_switches()


def _attention_switches() -> tuple[object, ...]:
    """Which of torch's attention kernels are allowed, and in which order they are asked."""
    cuda = torch.backends.cuda
    order = getattr(torch._C, "_get_sdp_priority_order", tuple)
    kinds = (cuda.flash_sdp_enabled, cuda.mem_efficient_sdp_enabled, cuda.cudnn_sdp_enabled, cuda.math_sdp_enabled)
    return *(enabled() for enabled in kinds), tuple(order())  # type: ignore[no-untyped-call]


@contextmanager
def disabled() -> Iterator[None]:
    """Inside this context the torch versions are used instead of the kernels, for comparisons."""
    token = _enabled.set(False)
    try:
        yield
    finally:
        _enabled.reset(token)
