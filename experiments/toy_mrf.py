"""The paper's toy experiment (section 3.2): 30 models on a Markov random field whose graph is known, and the report.

    python experiments/toy_mrf.py --out out/toy

trains on the GPU where there is one and writes results.json, report.md and the figures to out/toy/report; a run that
was interrupted goes on where it was. `--models 1` is what a CPU can do. docs/toy.md has the results.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

import torch

from dapd.mrf.recipe import chosen
from dapd.mrf.report import ReportOptions, build, write
from dapd.mrf.storage import load_run
from dapd.mrf.train import Execution, train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="run directory")
    parser.add_argument("--models", type=int, default=30)
    parser.add_argument("--steps", type=int, default=20_000)
    given = parser.parse_args()
    gpu = torch.cuda.is_available()
    execution = Execution("cuda" if gpu else "cpu", compile=gpu, tf32=gpu, checkpoint_every=4000, half=True)
    for at in train(chosen(given.models, given.steps), given.out / "run", execution):
        if at.step % 1000 == 0 or at.step < 10:
            print(f"step {at.step}/{at.steps}  loss {at.loss:.4f}  {at.seconds_left / 60:.1f} min left", flush=True)
    run = load_run(given.out / "run", device=execution.device)
    report = build(run, ReportOptions(command=shlex.join(["python", *sys.argv])), tell=print)
    for path in write(report, given.out / "report"):
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
