"""`dapd eval`: lm-eval's tasks on a model, as a table and a folder from which a killed run continues."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dapd.cli import crew, tables
from dapd.cli.models import Device, Dtype, Fp8, Model
from dapd.cli.progress import Working
from dapd.errors import DapdError
from dapd.evaluation.harness.gold import EXPECTED, check
from dapd.evaluation.harness.options import EvalOptions, TaskSummary, configured
from dapd.evaluation.harness.run import SUMMARY, evaluate
from dapd.evaluation.world import World
from dapd.generation import DEFAULT_MODEL
from dapd.io.fields import split_pair
from dapd.io.table import Table
from dapd.io.wording import plural
from dapd.scale.team import Spread
from dapd.settings import DEFAULT_STRATEGY

TASKS = "humaneval,mbpp,gsm8k,minerva_math500,ifeval"


def eval_(
    model: Model = DEFAULT_MODEL,
    strategy: Annotated[str, typer.Option("--strategy", "-s", help="As in `dapd generate`.")] = DEFAULT_STRATEGY,
    tasks: Annotated[
        str,
        typer.Option(
            "--tasks",
            "-t",
            help=f"lm-eval's names, separated by commas; default: {TASKS.replace(',', ', ')}.",
            show_default=False,
        ),
    ] = TASKS,
    out: Annotated[Path, typer.Option(help="Folder for results; a killed run continues where it stopped.")] = Path(
        "eval"
    ),
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder with the data sets; with it nothing is downloaded.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first N documents of each task.")] = None,
    shots: Annotated[int | None, typer.Option(help="Number of examples in the prompt; default: lm-eval's.")] = None,
    chat: Annotated[
        str, typer.Option(help="How prompts use the chat template: auto, single_turn, multi_turn or none.")
    ] = "auto",
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", "-n", help="New tokens of each answer.")] = 256,
    batch: Annotated[int, typer.Option(help="Prompts per batch.")] = 1,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A field of strategy, loop or evaluation: field=value; may be repeated."),
    ] = None,
    confirm: Annotated[
        bool, typer.Option("--confirm-run-unsafe-code", help="Run the code that the model writes (HumanEval, MBPP).")
    ] = False,
    device: Device = None,
    dtype: Dtype = None,
    fp8: Fp8 = False,
    workers: crew.Workers = 1,
    address: crew.Address = None,
    gold: Annotated[
        bool,
        typer.Option("--gold", help="Score the data sets' own answers, which should be right, to check the scorers."),
    ] = False,
    save_table: tables.SaveTable = None,
) -> None:
    """Score a model on lm-eval's tasks; under torchrun or accelerate launch the processes share the samples."""
    base = EvalOptions(max_new_tokens, limit, shots, batch=batch, data_dir=data_dir, confirm_unsafe_code=confirm)
    names = [name.strip() for name in tasks.split(",") if name.strip()]
    tables.check_files(save_table)
    if gold:
        check_gold(names, base, save_table)
        return
    texts = dict(split_pair(pair, "--set") for pair in settings or [])
    chosen, options = configured(strategy, {"chat": chat, **texts}, base)
    spread = Spread(workers, address=address)
    console = Console(quiet=World.from_environment().rank > 0)
    with (
        crew.resumable(),
        Working(console, "samples") as work,
        crew.model(model, spread=spread, batch=options.batch, device=device, dtype=dtype, fp8=fp8) as lm,
    ):
        summaries = evaluate(lm, chosen, names, options, out, work.advance)
    if World.from_environment().rank == 0:
        report(console, summaries, out)
        tables.save(save_table, as_table(summaries))


def as_table(summaries: Sequence[TaskSummary]) -> Table:
    """A row per task, with rounded numbers (`summary.json` has all digits)."""
    head = ("task", "n", "score", "steps", "tok/step", "tok/s", "(as Fast-dLLM)", "seconds")
    rows = []
    for row in summaries:
        numbers = (row.accuracy, row.nfe, row.tokens_per_forward, row.tps, row.tps_fast_dllm, row.seconds)
        shown = [f"{value:.{digits}f}" for value, digits in zip(numbers, (2, 1, 2, 1, 1, 1), strict=True)]
        rows.append((row.task, str(row.n), *shown))
    return Table(head, rows)


def check_gold(names: Sequence[str], options: EvalOptions, files: Sequence[Path] | None = None) -> None:
    """Score the gold answers; a score below the expected one is a fault of the harness or of the data."""
    if options.data_dir is None:
        raise DapdError("the gold answers are read from files: name their folder with --data-dir")
    with tempfile.TemporaryDirectory() as folder:
        summaries = check(options.data_dir, options, Path(folder), names)
    rows = [(row.task, row.metric, str(row.n), f"{row.accuracy:.2f}") for row in summaries]
    table = Table(("task", "metric", "documents", "score %"), rows, "gold answers", words=2)
    tables.show(Console(), table)
    tables.save(files, table)
    low = [row for row in summaries if row.accuracy < EXPECTED.get(row.task, 0)]
    if low:
        listed = ", ".join(f"{row.task} {row.accuracy:.2f}% of {EXPECTED[row.task]:g}%" for row in low)
        raise DapdError(f"gold answers score too low: {listed}")


def report(console: Console, summaries: Sequence[TaskSummary], out: Path) -> None:
    """Print the table, how many answers the scorers gave up on, and where the files are."""
    tables.show(console, as_table(summaries))
    for unit, mine in (("in percent", True), ("as lm-eval scales them", False)):
        named = "; ".join(f"{row.task} {row.metric}" for row in summaries if row.in_percent is mine)
        if named:
            console.print(f"scores {unit}: {named}", soft_wrap=True)
    summary = json.loads((out / SUMMARY).read_text(encoding="utf-8"))
    for row in summaries:
        late = summary["checker_timeouts"].get(row.task)
        if late:
            console.print(f"{row.task}: the scorer gave up on {plural(late, 'answer')}, counted as empty")
        n = next(one["n"] for one in summary["tasks"] if one["task"] == row.task)
        if n > row.n:
            console.print(
                f"{row.task}: {out / SUMMARY} keeps the {n} documents that were scored before", soft_wrap=True
            )
    console.print(f"written: {out / 'results.jsonl'}, {out / SUMMARY}", soft_wrap=True)
