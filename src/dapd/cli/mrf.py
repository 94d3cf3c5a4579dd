"""`dapd mrf`: the paper's toy experiment, trained and reported."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dapd.cli import crew
from dapd.cli.models import calm_threads
from dapd.errors import DapdError
from dapd.io.files import check_writable, make_folder
from dapd.io.wording import plural
from dapd.models.devices import pick_device
from dapd.mrf import report as reports
from dapd.mrf.evaluate import Budget
from dapd.mrf.network import Positions, Shape
from dapd.mrf.recipe import Masks, Recipe, Schedule, Variant, replicate
from dapd.mrf.storage import CHECKPOINT, SHIPPED, load_run
from dapd.mrf.sweep import SweepOptions, sweep
from dapd.mrf.train import LOSS_FLOOR, Execution, Progress, train
from dapd.plots.toy import report_figures

app = typer.Typer(help="The toy Markov random field of the paper's section 3.2.", no_args_is_help=True)
console = Console(highlight=False, soft_wrap=True)

Device = Annotated[str, typer.Option(help="Where to run: auto, cpu, cuda.")]


def command_line() -> str:
    """The command as it was given, to be named in what it wrote."""
    return shlex.join(["dapd", *sys.argv[1:]])


def describe(progress: Progress) -> str:
    left = progress.seconds_left
    time_left = f"{left / 3600:.1f} h" if left > 5400 else f"{left / 60:.1f} min" if left > 90 else f"{left:.0f} s"
    return (
        f"step {progress.step}/{progress.steps}  loss {progress.loss:.4f} (floor {LOSS_FLOOR:.4f}, worst model "
        f"{progress.worst_loss:.4f})  {progress.steps_per_second:.1f} steps/s  {time_left} left"
    )


@app.command("train")
def train_command(
    out: Annotated[Path, typer.Option(help="Run folder; an interrupted run in it is continued.")],
    models: Annotated[int, typer.Option(help="Number of models, trained side by side.")] = 30,
    width: Annotated[int, typer.Option(help="Width of the network.")] = 64,
    heads: Annotated[int, typer.Option(help="Attention heads.")] = 4,
    layers: Annotated[int, typer.Option(help="Transformer blocks.")] = 8,
    positions: Annotated[
        Positions, typer.Option(metavar="NAME", help=f"Position encoding: {', '.join(Positions)}.")
    ] = Positions.ROTARY,
    gated: Annotated[bool, typer.Option(help="Gates on the residual branches, zero at the start, as in DiT.")] = False,
    batch: Annotated[int, typer.Option(help="Sequences per step and model.")] = 256,
    steps: Annotated[int, typer.Option(help="Gradient steps.")] = 20_000,
    rate: Annotated[float, typer.Option(help="Learning rate.")] = 1e-3,
    schedule: Annotated[
        Schedule,
        typer.Option(metavar="NAME", help=f"The learning rate after the warm-up: {', '.join(Schedule)}."),
    ] = Schedule.TAIL,
    warmup: Annotated[int, typer.Option(help="Steps over which the learning rate rises.")] = 0,
    tail: Annotated[
        float, typer.Option(help="With schedule tail: the share of the steps over which the rate falls.")
    ] = 0.3,
    masks: Annotated[
        Masks, typer.Option(metavar="NAME", help=f"How masks are drawn ({', '.join(Masks)}); the loss is the same.")
    ] = Masks.MIDDLE,
    clip: Annotated[float, typer.Option(help="Largest gradient norm of one model; 0: no limit.")] = 1.0,
    ema: Annotated[
        float, typer.Option(help="Decay of the running mean of the weights; 0: keep the last weights.")
    ] = 0.999,
    dropout: Annotated[float, typer.Option(help="Dropout probability.")] = 0.0,
    weight_decay: Annotated[float, typer.Option(help="AdamW's weight decay.")] = 0.01,
    norm_bias: Annotated[float, typer.Option(help="Initial bias of the layer norms; 1 in RADD's code.")] = 0.0,
    dataset_size: Annotated[int, typer.Option(help="Sequences in each model's data set; 0: fresh ones.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the first model; the others count up from it.")] = 0,
    device: Device = "auto",
    compile: Annotated[bool, typer.Option(help="Fuse kernels with torch.compile.")] = False,
    tf32: Annotated[bool, typer.Option(help="Faster, coarser matrix products on a GPU.")] = False,
    half: Annotated[bool, typer.Option(help="Store the weights in 16 bits.")] = False,
    checkpoint_every: Annotated[int, typer.Option(help="Steps between checkpoints.")] = 1000,
) -> None:
    """Train a stack of toy models; the defaults are the paper's experiment."""
    if models < 1:
        raise DapdError(f"--models is {models}; it must be at least 1")
    variants = replicate(Variant(seed, dataset_size, dropout, weight_decay, norm_bias), models)
    shape = Shape(layers, width, heads, gated, positions)
    recipe = Recipe(shape, batch, steps, rate, schedule, warmup, tail, masks, clip, ema, variants)
    train_and_tell(recipe, out, Execution(str(pick_device(device)), compile, tf32, checkpoint_every, half=half))


def train_and_tell(recipe: Recipe, out: Path, execution: Execution) -> None:
    if execution.device == "cpu":
        models = plural(recipe.n_models, "model")
        console.print(f"No GPU in use: {models} on the CPU; the first steps tell how long it takes.")
    last = None
    with crew.resumable(lambda: _way_on(out, execution.checkpoint_every)):
        for last in train(recipe, out, execution):
            if last.step % max(100, recipe.steps // 40) == 0 or last.step < 100 or last.step == recipe.steps:
                console.print(describe(last))
    console.print(f"{out}: {'finished' if last else 'was finished already'}")


def _way_on(run: Path, every: int) -> str:
    """How to continue a training that was interrupted."""
    if (run / CHECKPOINT).is_file():
        return "the same command continues from the last checkpoint"
    return f"there is no checkpoint yet (one is written every {every} steps), so the same command begins anew"


@app.command("sweep")
def sweep_command(
    out: Annotated[Path, typer.Option(help="Folder for summary.json and the weights that are kept.")],
    minutes: Annotated[float, typer.Option(help="Stop cleanly after this many minutes.")] = 9.0,
    steps: Annotated[int, typer.Option(help="Gradient steps of each configuration.")] = 20_000,
    only: Annotated[str, typer.Option(help="Stacks of models to train, separated by commas; default: all.")] = "",
    keep: Annotated[str, typer.Option(help="Stacks whose weights are written, separated by commas.")] = "",
    models: Annotated[int, typer.Option(help="Models per configuration; 0: as planned.")] = 0,
    device: Device = "auto",
    compile: Annotated[bool, typer.Option(help="Fuse kernels with torch.compile.")] = True,
    tf32: Annotated[bool, typer.Option(help="Faster, coarser matrix products on a GPU.")] = True,
) -> None:
    """Train and judge configurations that the paper leaves open, in stacks of models trained side by side."""
    names = {key: tuple(n for n in text.split(",") if n) for key, text in {"only": only, "keep": keep}.items()}
    gpu = str(pick_device(device)).startswith("cuda")
    options = SweepOptions(steps, minutes, names["only"], names["keep"], models, Budget(exact=gpu))
    execution = Execution(str(pick_device(device)), compile and gpu, tf32)
    for at in sweep(options, out, execution):
        if at.training is not None and (at.training.step in (5, 100) or at.training.step % max(100, steps // 5) == 0):
            console.print(f"{at.stack}: {describe(at.training)}  [{at.training.mode}]", markup=False)
        if at.note:
            console.print(f"{at.stack}: left out, {at.note}")
        if at.result is not None and "cells" in at.result:
            print_cells(at.stack, at.result)
    console.print(f"{out / 'summary.json'}: written by {command_line()}")


@app.command("report")
def report_command(
    run: Annotated[
        Path | None, typer.Argument(help="Run folder of `dapd mrf train`; default: the model that ships.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer paths, samples and settings: takes seconds on a CPU.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for results.json, report.md and the figures.")] = None,
    paths: Annotated[int, typer.Option(help="Sampling paths per model.")] = 100,
    samples: Annotated[int, typer.Option(help="Samples of each decoder, over all models.")] = 1500,
    seed: Annotated[int, typer.Option(help="Seed of the orders and the tokens that are drawn.")] = 0,
    exact: Annotated[
        bool,
        typer.Option("--exact", help="Compute validity exactly, not from samples; 20 s per model on a CPU."),
    ] = False,
    device: Device = "auto",
) -> None:
    """Make the paper's three tables, with its own numbers, and compare the decoders with the true graph."""
    if paths < 2 or samples < 1:
        raise DapdError(f"--paths is {paths} and --samples {samples}; they must be at least 2 and 1")
    options = reports.ReportOptions(Budget(n_paths=paths, seed=seed, exact=exact), samples)
    options = replace(reports.QUICK_OPTIONS if quick else options, command=command_line())
    if out is not None:
        for name in reports.FILES:  # before the minutes that the report takes
            check_writable(make_folder(out) / name)
    trained = load_run(run or SHIPPED, device=str(pick_device(device)))
    calm_threads(trained.network)
    report = reports.build(trained, options, tell=console.print)
    console.print(report.to_markdown(), markup=False)
    console.print(f"{report.seconds:.0f} s")
    if out is not None:
        for path in [*reports.write(report, out), *report_figures(report, out)]:
            console.print(f"wrote {path}")


def print_cells(stack: str, result: dict[str, object]) -> None:
    cells = result["cells"]
    assert isinstance(cells, dict)
    console.print(f"{stack}: {result['seconds']:.0f} s")
    for name, cell in cells.items():
        parts = [f"  {name:24s} valid {cell['valid']:.3f} (worst {cell['valid_worst']:.3f})"]
        for selection, scores in cell["selections"].items():
            o = scores["overall"]
            first = scores["steps"][0]
            shown = " ".join(f"{o[m]['mean']:.3f}" for m in ("auc", "ratio", "ovr"))
            parts.append(f"{selection}: {shown} (step 1 OVR {first['ovr']['mean']:.2f})")
        console.print(" | ".join(parts), markup=False)
