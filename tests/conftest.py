"""Shapes in signatures are checked while the tests run: the hook must come before the first import of the package."""

import os
from importlib.util import find_spec

os.environ.setdefault("OMP_NUM_THREADS", "1")

CHECKED = ["dapd.graph", "dapd.canvas", "dapd.strategies.base", "dapd.models.transformer", "dapd.models.cache"]
CHECKED += [f"dapd.kernels.{name}" for name in ("attention", "capture", "norm", "rotary", "swiglu")]
if find_spec("beartype") is not None:  # a machine that only runs the tests on its GPU may lack it
    import shape_check

    shape_check.install(CHECKED)

import torch  # noqa: E402

torch.set_num_threads(1)
