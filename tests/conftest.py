"""Shapes in signatures are checked while the tests run: the hook must come before the first import of the package."""

import importlib.util
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from jaxtyping import install_import_hook

CHECKED = ["dapd.graph", "dapd.canvas", "dapd.strategies.base", "dapd.models.transformer", "dapd.models.cache"]
CHECKED += [f"dapd.kernels.{name}" for name in ("attention", "capture", "norm", "rotary", "swiglu")]
if importlib.util.find_spec("beartype"):  # the GPU tests may run where little else is installed
    install_import_hook(CHECKED, "shape_check.checked")

import torch  # noqa: E402

torch.set_num_threads(1)
