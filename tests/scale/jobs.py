"""Small jobs for the tests of this folder, and what makes two of them the same."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from dapd.cli.app import app
from dapd.decoding import Options
from dapd.generation import Completion, DiffusionLM
from dapd.scale.batch import Plan, read_rows
from dapd.scale.recipe import Recipe
from dapd.scale.work import Order
from dapd.settings import as_setting

MODEL = "random:tiny-llada"
RECIPE = Recipe(MODEL, device="cpu", places=4)
LENGTH = 8
"""Tokens of a text: so few that the tests do not wait for the model, so many that a job can be killed half-way."""
PLAN = Plan(as_setting("dapd-direct"), LENGTH, Options(early_stop=True))
PATIENCE = 240.0
"""Seconds that any wait in these tests may take."""


class Deadly:
    """An ask that ends the process that begins it."""

    def begin(self, lm: DiffusionLM) -> Order:
        os._exit(3)

    def end(self, lm: DiffusionLM, done: Completion) -> None:
        raise AssertionError


def length_of(lm: DiffusionLM, text: str) -> tuple[str, int]:
    """What a worker makes of a text, and in which process."""
    return f"{lm.name}: {len(lm.encode(text))} tokens", os.getpid()


def write_prompts(path: Path, n: int) -> Path:
    """Prompts of several lengths; every fifth draws with a temperature."""
    rows: list[dict[str, Any]] = []
    for number in range(n):
        row: dict[str, Any] = {"id": f"q{number}", "prompt": f"question {number} " + "so " * (number % 7)}
        rows.append({**row, "temperature": 1.0} if number % 5 == 0 else row)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows_of(path: Path) -> list[Any]:
    return list(read_rows(path, PLAN))


def results(path: Path) -> list[dict[str, Any]]:
    """The results of a file, without what depends on the clock."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def command(source: Path, output: Path, *more: str) -> list[str]:
    return ["batch", str(source), str(output), "-m", MODEL, "-n", str(LENGTH), "--batch", "4", "--device", "cpu", *more]


def batch(source: Path, output: Path, *more: str) -> Result:
    return CliRunner().invoke(app, command(source, output, *more))


def killed_after(n: int, arguments: Sequence[str], kept: Path) -> list[int]:
    """Run a command and kill it, with SIGKILL, once `kept` has so many lines; the processes that it had started."""
    process = subprocess.Popen([sys.executable, "-m", "dapd", *arguments], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE
    while not kept.exists() or kept.read_bytes().count(b"\n") < n:
        assert process.poll() is None, "the job ended before it could be killed"
        assert time.monotonic() < deadline, "the job does not get on"
        time.sleep(0.005)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(signal.SIGKILL)
    process.wait()
    return [int(child) for child in children]


def wait_until_gone(processes: Sequence[int]) -> None:
    deadline = time.monotonic() + PATIENCE
    while any(_lives(process) for process in processes):
        assert time.monotonic() < deadline, "a worker outlives its leader"
        time.sleep(0.05)


def _lives(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
