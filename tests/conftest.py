"""Shapes in signatures are checked while the tests run: the hook must come before the first import of the package."""

from __future__ import annotations

import functools
import gc
import os
import zlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

gc.disable()  # what is imported stays, so there is nothing to collect until the tests begin

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # the tests report to nobody, and a process less is started
os.environ.setdefault("RAY_worker_niceness", "0")  # Ray would stand back behind the tests that run beside it

CHECKED = ["dapd.graph", "dapd.canvas", "dapd.strategies.base", "dapd.models.transformer", "dapd.models.cache"]
CHECKED += [f"dapd.kernels.{name}" for name in ("attention", "capture", "norm", "rotary", "swiglu")]
if find_spec("beartype") is not None:  # a machine that only runs the tests on its GPU may lack it
    import shape_check

    shape_check.install(CHECKED)

import jaxtyping  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402

if TYPE_CHECKING:
    from xdist.scheduler import LoadFileScheduling

torch.set_num_threads(1)

TOGETHER = {
    "tests/scale/test_ray.py": "ray",
    "tests/scale/test_replicas.py": "ray",
    "tests/viewer/test_browser.py": "browser",
    "tests/server/test_page.py": "browser",
}
"""Files for one process among several: one cluster at a time, and one browser."""

LONGEST = [
    *TOGETHER,
    "tests/scale/test_processes.py",
    "tests/evaluation/test_paper.py",
    "tests/kernels/test_interpreted.py",
    "tests/models/test_parallel.py",
    "tests/evaluation/test_harness_processes.py",
    "tests/lab/test_shipped.py",
    "tests/forms/test_forms.py",
    "tests/decoding/test_properties.py",
    "tests/lab/test_train.py",
]
"""What begins first: begun last, one process would end long after the others."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Check shapes where that shows something new: a form that was never seen costs more than the call itself.

    One case in four of a parametrised test has the shapes of the others, and so has one of a thousand random scenes.
    """
    function = getattr(item, "function", None)
    many = hasattr(function, "hypothesis") or item.get_closest_marker("slow") is not None
    alike = hasattr(item, "callspec") and zlib.crc32(item.nodeid.encode()) % 4 > 0
    jaxtyping.config.update("jaxtyping_disable", many or alike)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Collect garbage from here on; during imports and collection it took half of the time."""
    gc.enable()
    if find_spec("typer") is not None:
        build_commands_once()


def build_commands_once() -> None:
    """A process of the command line builds its commands once, and so do the tests, which call it hundreds of times."""
    import typer.main
    import typer.testing

    once = functools.cache(typer.main.get_command)
    typer.main.get_command = typer.testing._get_command = once


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {file: number for number, file in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.nodeid.partition("::")[0], len(rank)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """Whole files for a process, so that what the tests of a file share is made once. (Groups by mark, xdist's own way,
    are silently ignored with pytest 9.2.)"""
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return TOGETHER.get(file, file)

    config.option.loadscopereorder = False  # which would begin with the file that has the most tests
    return ByFile(config, log)
