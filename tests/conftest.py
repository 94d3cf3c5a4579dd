"""Shapes in signatures are checked while the tests run: the hook must come before the first import of the package."""

import os
import zlib
from importlib.util import find_spec

os.environ.setdefault("OMP_NUM_THREADS", "1")

from jaxtyping import install_import_hook

CHECKED = ["dapd.graph", "dapd.canvas", "dapd.strategies.base", "dapd.models.transformer", "dapd.models.cache"]
CHECKED += [f"dapd.kernels.{name}" for name in ("attention", "capture", "norm", "rotary", "swiglu")]
if find_spec("beartype") is not None:  # a machine that only runs the tests on its GPU may lack it
    install_import_hook(CHECKED, "shape_check.checked")

import jaxtyping  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(1)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Check shapes where that shows something new: a checked decoding takes three times as long.

    One case in four of a parametrised test has the shapes of the others, and so has one of a thousand random scenes.
    """
    function = getattr(item, "function", None)
    many = hasattr(function, "hypothesis") or item.get_closest_marker("slow") is not None
    alike = hasattr(item, "callspec") and zlib.crc32(item.nodeid.encode()) % 4 > 0
    jaxtyping.config.update("jaxtyping_disable", many or alike)
