"""`dapd paper`: the paper's tables, with our numbers and its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.console import Console

from dapd.cli import crew, tables
from dapd.cli.models import Device, Dtype, Model
from dapd.cli.paper_figures import draw
from dapd.cli.progress import Working
from dapd.errors import DapdError, unknown
from dapd.evaluation.harness.options import Chat
from dapd.evaluation.paper import TABLES, Report, Scope, Study, build
from dapd.evaluation.world import World
from dapd.generation import DEFAULT_MODEL
from dapd.scale.team import Spread

ALONE = ("tau_min", "toy")
"""Tables that only one process can make: for tau_min a decoder counts edge scores as it goes, and for toy the
model decodes nothing."""


def paper(
    table: Annotated[str, typer.Option("--table", "-t", help=f"One of: {', '.join(TABLES)}.")],
    model: Model = DEFAULT_MODEL,
    out: Annotated[Path, typer.Option(help="Folder for results; a killed run continues where it stopped.")] = Path(
        "paper"
    ),
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the data sets; default: the public hubs.")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first N samples of each task.")] = None,
    only: Annotated[str, typer.Option(help="Only these methods and tasks, separated by commas; default: all.")] = "",
    settings: Annotated[
        str, typer.Option(help="The paper's settings for llada or for dream; auto: those for the model.")
    ] = "auto",
    length: Annotated[int, typer.Option(help="New tokens, in place of the paper's 256.")] = 256,
    shots: Annotated[
        int | None, typer.Option(help="Number of examples in lm-eval's prompts; default: lm-eval's.")
    ] = None,
    chat: Annotated[
        str, typer.Option(help=f"How lm-eval's prompts use the chat template: {', '.join(get_args(Chat))}.")
    ] = "auto",
    batch: Annotated[int, typer.Option(help="Prompts per batch; with 1 the times are comparable.")] = 1,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="With table multi: try all settings of the paper's sweeps.")
    ] = False,
    confirm: Annotated[
        bool, typer.Option("--confirm-run-unsafe-code", help="Run the code that the model writes (HumanEval, MBPP).")
    ] = False,
    no_plot: Annotated[bool, typer.Option("--no-plot", help="Do not draw the table's figures.")] = False,
    save_table: tables.SaveTable = None,
    device: Device = None,
    dtype: Dtype = None,
    workers: crew.Workers = 1,
    address: crew.Address = None,
) -> None:
    """Run a table of the paper with its settings, and print our numbers and its own."""
    if table not in TABLES:
        raise unknown("table", table, TABLES)
    if chat not in get_args(Chat):
        raise unknown("chat mode", chat, get_args(Chat))
    names = tuple(name.strip() for name in only.split(",") if name.strip())
    scope = Scope(limit, length, names, shots, sweep)
    tables.check_files(save_table)
    if batch < 1:
        raise DapdError(f"batch is {batch}; it must be at least 1")
    spread = Spread(workers, address=address)
    if table in ALONE and not spread.is_here:
        raise DapdError(f"the table {table} is made in one process; leave out --workers and --address")
    console = Console(quiet=World.from_environment().rank > 0)
    with (
        crew.resumable(),
        Working(console, "samples") as work,
        crew.model(model, spread=spread, batch=batch, device=device, dtype=dtype) as lm,
    ):
        study = Study(
            model=lm,
            out=out,
            data_dir=data_dir,
            settings=settings,
            scope=scope,
            batch=batch,
            chat=chat,  # type: ignore[arg-type]
            confirm_unsafe_code=confirm,
            tell=work.tell,
            progress=work.advance,
        )
        report = build(table, study)
    show(console, report)
    written = [*study.written]
    if study.is_first and report.lines:
        written += tables.save(save_table, report.as_table())
    elif study.is_first and save_table:
        raise DapdError(f"{table} comes as text and has no single table to save; it lies in {study.file(table, '.md')}")
    if not no_plot and study.is_first:
        written += draw(report, study)
    console.print("written: " + ", ".join(str(path) for path in written), soft_wrap=True)


def show(console: Console, report: Report) -> None:
    """The table on the screen; what the paper does not print follows it."""
    if report.lines:
        tables.show(console, report.as_table())
    if report.text:
        console.print(report.text, markup=False, soft_wrap=True)
    for note in report.notes:
        console.print(f"- {note}", markup=False, soft_wrap=True)
