"""`dapd compare`: decoders side by side, as a table, a figure and JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dapd.cli import crew, tables
from dapd.cli.models import Device, Dtype, Model
from dapd.cli.progress import Working
from dapd.errors import DapdError, missing_extra, unknown
from dapd.evaluation.compare import Comparison, decoders
from dapd.evaluation.file_task import FileTask
from dapd.evaluation.paired import Difference, differences
from dapd.evaluation.runs import RESULTS
from dapd.evaluation.summary import Row, areas, as_table, summarise
from dapd.generation import DEFAULT_MODEL, DEFAULT_NEW_TOKENS
from dapd.io.files import check_writable, make_folder, write_text
from dapd.io.table import Table
from dapd.io.wording import plural
from dapd.lab.tasks import Task, get
from dapd.plots.figure import has_matplotlib
from dapd.plots.tradeoff import tradeoff
from dapd.scale.team import Spread

DEFAULT_DECODERS = (
    "original",
    "fast-dllm",
    "eb-sampler",
    "klass",
    "local-leap",
    "dawn",
    "dapd-staged",
    "dapd-direct",
)
DEFAULT_PROMPTS = 50


def compare(
    strategies: Annotated[
        list[str] | None,
        typer.Option(
            "--strategy",
            "-s",
            help="As in `dapd generate`, or a sweep (see above); may be repeated.",
        ),
    ] = None,
    tasks: Annotated[
        str,
        typer.Option(
            "--tasks",
            "-t",
            help="Tasks (`dapd lab tasks`) or .jsonl files of prompts and answers, separated by commas.",
        ),
    ] = "quiz-5",
    prompts: Annotated[
        int | None,
        typer.Option(
            "--prompts",
            "-p",
            help=f"Test prompts per task; default: {DEFAULT_PROMPTS}, or all of a file that has fewer.",
        ),
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-n", min=1, help="New tokens for the prompts of a file.")
    ] = DEFAULT_NEW_TOKENS,
    out: Annotated[Path, typer.Option(help="Folder for results; a killed run continues where it stopped.")] = Path(
        "compare"
    ),
    model: Model = DEFAULT_MODEL,
    seed: Annotated[int, typer.Option(help="Seed of the choice of test prompts and of random draws.")] = 0,
    batch: Annotated[int, typer.Option(help="Prompts per batch.")] = 16,
    against: Annotated[
        str | None,
        typer.Option(help="A decoder, named as in the table; every other is tested against it, prompt by prompt."),
    ] = None,
    plot: Annotated[bool, typer.Option("--plot/--no-plot", help="Draw score against forward passes.")] = True,
    save_table: tables.SaveTable = None,
    device: Device = None,
    dtype: Dtype = None,
    workers: crew.Workers = 1,
    address: crew.Address = None,
) -> None:
    """Compare decoders on tasks whose answers can be checked.

    Several values of a field make a sweep: -s fast-dllm:threshold=0.7/0.9
    """
    tables.check_files(save_table)
    n = DEFAULT_PROMPTS if prompts is None else prompts
    if n < 1 or batch < 1:
        raise DapdError(f"prompts is {n} and batch {batch}; both must be at least 1")
    chosen = [decoder for spec in strategies or DEFAULT_DECODERS for decoder in decoders(spec)]
    names = [name.strip() for name in tasks.split(",") if name.strip()]
    asked = [task_named(name, max_new_tokens, whole=prompts is None) for name in names]
    if not asked:
        raise DapdError("no task was named; see `dapd lab tasks`")
    total = len(chosen) * sum(len(task.examples(n, seed)) for task in asked)
    if against is not None and against not in (labels := [decoder.label for decoder in chosen]):
        raise unknown("decoder", against, labels)
    summary = out / "summary.json"
    figure = out / "tradeoff.png"
    for path in (summary, *[figure] * plot):  # before the minutes that the work takes
        check_writable(make_folder(out) / path.name)
    console = Console()
    spread = Spread(workers, address=address)
    with (
        crew.resumable(),
        Working(console, "decoding", total) as work,
        crew.model(model, spread=spread, batch=batch, device=device, dtype=dtype) as lm,
    ):
        comparison = Comparison(lm, chosen, asked, n, seed, batch)
        results = comparison.run(out, work.advance)
    rows = summarise(results)
    print_rows(console, rows)
    gains = [] if against is None else differences(results, against)
    if gains:
        print_gains(console, gains)
    report = {
        "paired": [dataclasses.asdict(gain) for gain in gains],
        "setup": comparison.setup(),
        "rows": [dataclasses.asdict(row) for row in rows],
        "aup": areas(rows),
    }
    written = [out / RESULTS, write_text(summary, json.dumps(report, indent=1) + "\n")]
    written += tables.save(save_table, as_table(rows))
    if plot and has_matplotlib():
        tradeoff(rows, figure)
        written.append(figure)
    elif plot:
        console.print(f"no figure: {missing_extra('matplotlib', 'plots', 'drawing figures')}", markup=False)
    console.print("written: " + ", ".join(str(path) for path in written), soft_wrap=True)


def task_named(name: str, room: int, *, whole: bool) -> Task:
    """A task of the lab, or a file of prompts and answers; with `whole` it may hold fewer than are asked for."""
    return FileTask(Path(name), room, whole) if name.endswith(".jsonl") else get(name)


def print_gains(console: Console, gains: Sequence[Difference]) -> None:
    """Print what every decoder gains over the one that it is tested against."""
    lines = [
        (
            gain.task,
            gain.decoder,
            f"{gain.gain:+.1f}",
            f"{gain.low:+.1f} to {gain.high:+.1f}",
            str(gain.better),
            str(gain.worse),
            f"{gain.p:.3f}",
        )
        for gain in gains
    ]
    title = f"against {gains[0].against}, prompt by prompt (p: McNemar's exact test)"
    tables.show(console, Table(("task", "decoder", "points", "95%", "better", "worse", "p"), lines, title, words=2))


def print_rows(console: Console, rows: Sequence[Row]) -> None:
    """A table per task; a star marks the rows that no other beats."""
    whole = as_table(rows)
    for task in dict.fromkeys(row.task for row in rows):
        here = [cells for cells in whole.rows if cells[0] == task]
        lines = [(f"{star or ' '} {decoder}", *numbers) for _, decoder, star, _, *numbers in here]
        title = f"{task}: {plural(int(here[0][3]), 'prompt')} (* on the Pareto front)"
        tables.show(console, Table(("decoder", *whole.head[4:]), lines, title))
