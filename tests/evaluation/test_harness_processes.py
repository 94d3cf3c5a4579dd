"""Killed runs and several processes end in the table of one run that nothing interrupted."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from evaluation.harness_data import write_data

pytest.importorskip("lm_eval", reason="the eval extra is not installed")

from dapd.cli.app import app

FEW = 5


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


def command(data: Path, out: Path) -> list[str]:
    # One example, drawn at random for every prompt of GSM8K: the draws must not depend on who decodes the prompt.
    chosen = ["--data-dir", str(data), "--out", str(out), "-n", "24", "--shots", "1", "-s", "original"]
    few = ["-t", "gsm8k,minerva_math500", "--limit", str(FEW)]
    return ["eval", "-m", "random:tiny-llada", "--device", "cpu", *few, *chosen]


def table(out: Path) -> list[Any]:
    """What a run found, without what depends on the clock."""
    tasks = json.loads((out / "summary.json").read_text())["tasks"]
    return [{k: v for k, v in t.items() if not k.startswith("tps") and k != "seconds"} for t in tasks]


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole")
    result = CliRunner().invoke(app, command(data, out), env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    assert "gsm8k" in result.output
    assert "Fast-dLLM)" in result.output
    return out


def test_a_killed_run_ends_in_the_same_table(whole: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = subprocess.Popen([sys.executable, "-m", "dapd", *command(data, out)], stdout=subprocess.DEVNULL)
    results, deadline = out / "results.jsonl", time.monotonic() + 120
    while not results.exists() or results.read_text().count("\n") < 3:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = results.read_text().count("\n")
    assert 3 <= kept < 2 * FEW
    assert not (out / "summary.json").exists()
    result = CliRunner().invoke(app, command(data, out))
    assert result.exit_code == 0, result.output
    assert len(results.read_text().splitlines()) == 2 * FEW
    assert table(out) == table(whole)
    assert len((out / "environment.jsonl").read_text().splitlines()) == 2


def test_two_processes_give_the_table_of_one(whole: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "dapd"]
    # The launcher is one more process that imports torch: all of them get one thread.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launch, *command(data, out)], capture_output=True, text=True, timeout=300, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("minerva_math500 math_verify") == 1
    assert table(out) == table(whole)
    places = [json.loads(line) for line in (out / "environment.jsonl").read_text().splitlines()]
    assert sorted((p["rank"], p["world_size"]) for p in places) == [(0, 2), (1, 2)]
    records = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert len({(r["task"], r["doc"]) for r in records}) == len(records) == 2 * FEW


def test_two_workers_give_the_table_of_one(whole: Path, data: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [*command(data, tmp_path / "out"), "--workers", "2"])
    assert result.exit_code == 0, result.output
    assert table(tmp_path / "out") == table(whole)
