"""Compiles every kernel for a GPU that need not be there, run as a program: see test_compiles.py.

The interpreter runs kernels as Python, so it accepts what the compiler does not. Here a made-up driver names the GPU,
and launches become compilations.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys

import torch

CANNOT = 77
"""Exit code where this installation compiles nothing without a GPU."""
HELPERS = {"_is_one_of"}
"""Called by kernels, never launched."""

USERS = ("confidence", "selection", "jit.capture", "jit.fp8", "jit.norm", "jit.rotary", "jit.swiglu")
"""Modules that launch kernels, early as on the GPU they are compiled for."""

compiled: set[str] = set()


class Driver:
    """As much of a driver as compilation asks for."""

    def __init__(self, target):
        self.target = target

    def get_current_target(self):
        return self.target

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=None):
        return 0

    def get_active_torch_device(self):
        return torch.device("cpu")


def pretend_to_have_a_gpu():
    """Name an H100 as the device, and compile where a kernel would be launched."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver, jit

    driver.set_active(Driver(GPUTarget("cuda", 90, 32)))
    launch = jit.JITFunction.run

    def run(self, *args, grid, warmup, **options):
        made = launch(self, *args, grid=grid, warmup=True, **options)
        assert made.asm["cubin"], "there is no machine code"
        if self.fn.__name__ != "copy":
            assert "griddepcontrol.wait" in made.asm["ptx"], "it does not wait for what comes before it"
        compiled.add(self.fn.__name__)
        return made

    jit.JITFunction.run = run


def probe():
    """A kernel that cannot be wrong: where it does not compile, the installation is what is missing."""
    from compiling_probe import copy

    copy[(1,)](torch.zeros(16), torch.zeros(16), 16)
    compiled.clear()


def activations(dtype, heads, groups, size, valid):
    """Every kernel of a layer."""
    from dapd.kernels import capture, norm, rotary, swiglu

    width, n = heads * size, 64
    x, weight = torch.zeros(1, n, width, dtype=dtype), torch.ones(width, dtype=dtype)
    norm.add_rms_norm(x, x, weight, 1e-5)
    tables = torch.zeros(1, 1, n, size, dtype=torch.float32 if heads == groups else dtype)
    rotary.rotated_heads(torch.zeros(1, n, (heads + 2 * groups) * size, dtype=dtype), (heads, groups), tables, tables)
    swiglu.swiglu(torch.zeros(1, n, 256, dtype=dtype))
    q, k = torch.zeros(1, heads, n, size, dtype=dtype), torch.zeros(1, groups, n, size, dtype=dtype)
    total = capture.AttentionSum()
    for _ in range(2):
        total.add(q, k, torch.zeros(1, heads, n), valid)


def decisions():
    """The kernels between logits and commits."""
    from dapd.kernels import confidence, fp8, selection

    for n, dtype in ((5, torch.float32), (256, torch.float64), (1000, torch.float32), (4096, torch.float32)):
        every = torch.ones(1, n, dtype=torch.bool)
        selection.independent_set(torch.zeros(1, n, n, dtype=torch.bool), torch.zeros(1, n, dtype=dtype), every)
    for vocab, dtype, wide in (
        (264, torch.float32, torch.float64),
        (126464, torch.bfloat16, torch.float32),
        (1344, torch.float16, torch.bfloat16),
    ):
        confidence.most_likely(torch.zeros(2, vocab, dtype=dtype), [1], [2, 3], wide)
    fp8.quantise(torch.zeros(8, 512, dtype=torch.bfloat16))


def kernels_of_the_package():
    """The names of all that could be launched."""
    from triton.runtime.jit import JITFunction

    import dapd.kernels.jit as package

    modules = [importlib.import_module(f"{package.__name__}.{m.name}") for m in pkgutil.iter_modules(package.__path__)]
    found = {
        value.fn.__name__ for module in modules for value in vars(module).values() if isinstance(value, JITFunction)
    }
    return found - HELPERS


def main():
    from dapd import kernels

    try:
        pretend_to_have_a_gpu()
        probe()
    except Exception as error:
        print(f"nothing compiles without a GPU here: {type(error).__name__}: {str(error)[:300]}")
        sys.exit(CANNOT)
    kernels.interpreted = lambda: True  # as under the interpreter, any tensor will do
    early = {"PDL": True, "launch_pdl": True}
    for module in (f"{kernels.__name__}.{name}" for name in USERS):
        importlib.import_module(module).dependent_launch = lambda tensor: early
    activations(torch.bfloat16, 4, 4, 128, None)
    activations(torch.float32, 4, 2, 64, torch.ones(1, 64, dtype=torch.bool))
    decisions()
    forgotten = kernels_of_the_package() - compiled
    assert not forgotten, f"not compiled here: {sorted(forgotten)}"
    print(f"compiled {len(compiled)} kernels")


if __name__ == "__main__":
    main()
