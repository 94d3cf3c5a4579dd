"""The kernels' tests on a machine without a GPU: in a process where Triton interprets them from its first import on."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dapd.kernels import interpreted

HERE = Path(__file__).parent


@pytest.mark.skipif(interpreted() or torch.cuda.is_available(), reason="the tests themselves run here")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
@pytest.mark.parametrize("file", ["test_twins.py", "test_model_twins.py"])
def test_interpreted(file):
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", str(HERE / file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "passed" in done.stdout
    assert "skipped" not in done.stdout
