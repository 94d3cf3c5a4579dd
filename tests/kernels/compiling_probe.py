"""The simplest of kernels, by which compiling.py sees whether anything compiles."""

import triton
import triton.language as tl


@triton.jit
def copy(source, out, n, BLOCK: tl.constexpr = 16):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(source + at, at < n), at < n)
