"""The kernels on a CPU. Triton must be told to interpret them before its first import: a new process runs them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dapd import kernels

pytest.importorskip("triton")
HERE = Path(__file__).parent
FILES = [HERE / "test_twins.py", HERE / "test_model_twins.py", *sorted(HERE.glob("interpreted/test_*.py"))]


@pytest.mark.skipif(kernels.interpreted() or torch.cuda.is_available(), reason="the tests themselves run here")
def test_under_the_interpreter():
    """All files in one process, which loads torch once, and without the plugins that it has no use for."""
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *map(str, FILES)]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=HERE.parents[1], timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "passed" in done.stdout
    assert "skipped" not in done.stdout


@pytest.mark.skipif(kernels.interpreted() or torch.cuda.is_available(), reason="for a CPU without the interpreter")
def test_ordinary_tests_do_not_run_through_the_interpreter():
    assert not kernels.usable(torch.zeros(1))
