"""Shapes in signatures are checked while the tests run: the hook must come before the first import of the package."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from jaxtyping import install_import_hook

CHECKED = ["dapd.graph", "dapd.canvas", "dapd.strategies.base", "dapd.models.transformer", "dapd.models.cache"]
install_import_hook(CHECKED, "shape_check.checked")

import torch  # noqa: E402

torch.set_num_threads(1)
