"""The paper's toy experiment (section 3.2): 30 models on a Markov random field whose graph is known, and the report.

    python experiments/toy_mrf.py --out out/toy

trains on the GPU where there is one and writes results.json, report.md and the figures to out/toy/report; a run that
was interrupted goes on where it was. `--models 1` is what a CPU can do. docs/toy.md has the results.
"""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import sys
import time
from pathlib import Path

import torch

from dapd.cli import guarded
from dapd.errors import DapdError
from dapd.mrf.evaluate import Budget
from dapd.mrf.recipe import chosen
from dapd.mrf.report import QUICK_OPTIONS, ReportOptions, build, write
from dapd.mrf.storage import hardware, load_run
from dapd.mrf.train import Execution, train
from dapd.plots.toy import report_figures


def main() -> None:
    began = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="run directory")
    parser.add_argument("--models", type=int, default=30)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=chosen().batch)
    parser.add_argument(
        "--limit", type=float, default=float("inf"), help="give up early if training needs more seconds"
    )
    parser.add_argument("--quick", action="store_true", help="fewer samples and decoders in the report")
    given = parser.parse_args()
    if given.models < 1:
        raise DapdError(f"--models is {given.models}; it must be at least 1")
    gpu = torch.cuda.is_available()
    recipe = dataclasses.replace(chosen(given.models, given.steps), batch=given.batch)
    execution = Execution("cuda" if gpu else "cpu", compile=gpu, tf32=gpu, checkpoint_every=4000, half=True)
    last = None
    for last in train(recipe, given.out / "run", execution):
        if last.step % 1000 == 0 or last.step < 10:
            left = f"{last.steps_per_second:.1f} steps/s  {last.seconds_left / 60:.1f} min left  [{last.mode}]"
            print(
                f"step {last.step}/{last.steps}  loss {last.loss:.4f}, worst {last.worst_loss:.4f}  {left}", flush=True
            )
        if last.step == 300 and last.seconds_left > given.limit:
            sys.exit(f"training would take {last.seconds_left:.0f} s more, over the limit of {given.limit:.0f} s")
    trained = time.monotonic() - began
    command = shlex.join(["python", *sys.argv])
    training = {"command": command, "hardware": hardware(execution.device), "seconds": round(trained, 1)}
    if last is not None:
        training |= {"steps_per_second": round(last.steps_per_second, 1), "mode": last.mode, "last_loss": last.loss}
    print(f"trained in {trained:.0f} s", flush=True)
    torch.set_float32_matmul_precision("highest")  # training may round, measuring may not
    run = load_run(given.out / "run", device=execution.device)
    options = QUICK_OPTIONS if given.quick else ReportOptions(Budget(exact=gpu))
    options = dataclasses.replace(options, command=command, training=training)
    report = build(run, options, tell=lambda text: print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True))
    for path in [*write(report, given.out / "report"), *report_figures(report, given.out / "report")]:
        print(f"wrote {path}")
    print(report.to_markdown().split("## By", 1)[0])
    print(f"{time.monotonic() - began:.0f} s in all, {report.seconds:.0f} s of them for the report")


if __name__ == "__main__":
    guarded(main)
