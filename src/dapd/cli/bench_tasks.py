"""`dapd parallelbench`: check the scorers against the released answers, and make new instances."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dapd.cli import tables
from dapd.errors import DapdError
from dapd.evaluation.paper.report import shown
from dapd.evaluation.parallelbench import EXACT, GROUPS, Batch, Tools, gold_scores, load_task, make
from dapd.io.table import Table
from dapd.io.wording import plural

app = typer.Typer(
    help="ParallelBench: check its scorers, make new instances; `dapd paper -t parallelbench` runs it.",
    no_args_is_help=True,
)


@app.command("gold")
def gold_command(
    data_dir: Annotated[Path, typer.Option(help="Folder of the released files, or of files that `make` wrote.")],
    save_table: tables.SaveTable = None,
) -> None:
    """Score the files' own answers, to check the scorers: 100 wherever a score is exact."""
    folder = data_dir / "parallelbench" if (data_dir / "parallelbench").is_dir() else data_dir
    here = [group for group in GROUPS.values() if (folder / group.folder).is_dir()]
    if not here:
        raise DapdError(
            f"{folder} holds none of ParallelBench's folders: {', '.join(g.folder for g in GROUPS.values())}"
        )
    tables.check_files(save_table)
    tools = Tools.find()
    console = Console()
    rows = []
    wrong = []
    for group in here:
        for name in group.names:
            task = load_task(folder, name)
            parts = gold_scores(task, tools)
            total = parts.pop("score")
            listed = ", ".join(f"{part} {shown(value)}" for part, value in parts.items())
            rows.append((name, listed, str(len(task.samples)), shown(total)))
            if task.metric in EXACT and total != 100:
                wrong.append(name)
    table = Table(("task", "parts", "n", "score"), rows, words=2)
    tables.show(console, table)
    tables.save(save_table, table)
    absent = [group.folder for group in GROUPS.values() if group not in here]
    if absent:
        console.print(f"not in {folder}: {', '.join(absent)}", soft_wrap=True)
    for part, why in tools.missing.items():
        console.print(f"{part} is not scored: {why}")
    if wrong:
        raise DapdError(f"answers of the files themselves do not score 100: {', '.join(wrong)}")


@app.command("make")
def make_command(
    out: Annotated[Path, typer.Option(help="Folder for the files: a new one, or one that a killed run left.")],
    samples: Annotated[int, typer.Option(help="Samples per task.")] = 100,
    size: Annotated[int, typer.Option(help="Entries of each list.")] = 15,
    seed: Annotated[int, typer.Option(help="The same seed makes the same files.")] = 0,
) -> None:
    """Make new instances of the list and grid tasks, in the released files' format, with prompts written for dapd."""
    written = make(out, Batch(samples, size, seed))
    Console().print(f"{len(written)} tasks of {plural(samples, 'sample')} in {out}", soft_wrap=True)
