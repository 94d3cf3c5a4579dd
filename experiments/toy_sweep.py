"""The toy's sensitivity to what the paper leaves open: the stacks of `dapd mrf sweep`, each in a process of its own.

    python experiments/toy_sweep.py --out out/sweep --steps 6000 --minutes 3

A stack of a few small models leaves most of a GPU idle and compiles for as long as it trains; side by side they share
both. Writes summary.json. docs/toy.md has the results.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from dapd.cli import guarded
from dapd.errors import DapdError
from dapd.io.files import make_folder, parse_json, write_text
from dapd.mrf.sweep import SweepOptions

NEW = "w64-h4,w128-h8,w64-h4-learned,w64-h4-batch512,w256-h8,w768-h12"


def main() -> None:
    began = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default=NEW, help="names of stacks, with commas")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--minutes", type=float, default=9.0)
    given = parser.parse_args()
    names = tuple(name for name in given.only.split(",") if name)
    if not names:
        raise DapdError("--only names no stack")
    SweepOptions(given.steps, given.minutes, names)  # a mistake is reported once, not by every process
    parts = make_folder(given.out / "parts")
    # Six compilers with a worker for each core would fight for the cores.
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "2", "OMP_NUM_THREADS": "1"}
    flags = ["--steps", str(given.steps), "--minutes", str(given.minutes)]
    running = {}
    for name in names:
        command = [sys.executable, "-m", "dapd", "mrf", "sweep", "--only", name, "--out", str(parts / name), *flags]
        running[name] = subprocess.Popen(command, env=environment)
    failed = [name for name, process in running.items() if process.wait()]
    whole: dict[str, object] = {"command": " ".join(["python", *sys.argv]), "failed": failed}
    stacks: dict[str, object] = {}
    for name in running:
        path = parts / name / "summary.json"
        if path.exists():
            part = parse_json(path.read_text(encoding="utf-8"))
            stacks |= part.pop("stacks")
            whole |= part
            path.unlink()
    whole |= {"seconds": round(time.monotonic() - began, 1), "stacks": stacks}
    write_text(given.out / "summary.json", json.dumps(whole, indent=1) + "\n")
    print(
        f"{given.out / 'summary.json'}: {time.monotonic() - began:.0f} s in all; failed: {', '.join(failed) or 'none'}"
    )


if __name__ == "__main__":
    guarded(main)
