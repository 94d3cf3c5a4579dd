"""The kernels on a CPU. Triton must be told to interpret them before its first import: a new process runs them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
HERE = Path(__file__).parent / "interpreted"


@pytest.mark.parametrize("file", sorted(path.name for path in HERE.glob("test_*.py")))
def test_under_the_interpreter(file):
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", str(HERE / file)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=HERE.parents[2], check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_ordinary_tests_do_not_run_through_the_interpreter():
    import torch

    from dapd import kernels

    assert not kernels.interpreted()
    assert not kernels.usable(torch.zeros(1))
