"""Where kernels can run: on a GPU, or on the CPU in a process that was started with TRITON_INTERPRET=1."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dapd import kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RUNS = kernels.usable(torch.zeros(1, device=DEVICE))

needs_kernels = pytest.mark.skipif(
    not RUNS, reason="kernels run on a GPU or under the interpreter: see test_interpreted"
)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

DTYPES = [torch.float32, torch.bfloat16]
PRODUCTS = [torch.float32, torch.bfloat16 if DEVICE == "cuda" else torch.float16]
"""Of matrix products: the interpreter takes bf16 operands for whole numbers."""
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1.6e-2 if DEVICE == "cuda" else 4e-2}
"""Relative to values of about one: a rounding or two. The interpreter cuts bf16 off instead of rounding."""


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)
