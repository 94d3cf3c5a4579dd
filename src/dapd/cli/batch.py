"""`dapd batch`: a result for every row of a file, on one worker or many."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dapd.cli import crew
from dapd.cli.models import Dtype, Fp8, Model, calm_threads
from dapd.cli.progress import Working
from dapd.decoding import Options
from dapd.errors import DapdError
from dapd.generation import DEFAULT_MODEL, DEFAULT_NEW_TOKENS
from dapd.io.files import check_writable
from dapd.io.wording import plural
from dapd.models.devices import pick_dtype
from dapd.scale import files
from dapd.scale.batch import Plan, check_own, parts_of, read_rows, run, without_meaning
from dapd.scale.recipe import Recipe
from dapd.scale.team import PATIENCE, Spread, gathered
from dapd.settings import DEFAULT_STRATEGY, read_settings


def batch(
    source: Annotated[Path, typer.Argument(metavar="INPUT", help="Prompts: a .jsonl or .parquet file.")],
    output: Annotated[Path, typer.Argument(help="Results: a .jsonl or .parquet file.")],
    model: Model = DEFAULT_MODEL,
    strategy: Annotated[str, typer.Option("--strategy", "-s", help="As in `dapd generate`.")] = DEFAULT_STRATEGY,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-new-tokens",
            "-n",
            min=1,
            help=f"New tokens, if a row does not say; default: what a lab task needs, else {DEFAULT_NEW_TOKENS}.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A field of the strategy or the loop: field=value; may be repeated."),
    ] = None,
    system: Annotated[str | None, typer.Option(help="A system message before every prompt.")] = None,
    raw: Annotated[bool, typer.Option("--raw/--chat", help="Continue the texts / answer them as a chat.")] = False,
    places: Annotated[int, typer.Option("--batch", min=1, help="Prompts that share a pass, in each worker.")] = 16,
    workers: crew.Workers = 1,
    ray: Annotated[
        bool, typer.Option("--ray", help="Run the workers on a Ray cluster started on this machine.")
    ] = False,
    address: crew.Address = None,
    patience: Annotated[
        float, typer.Option(help="With Ray: give up after this many seconds without a result.")
    ] = PATIENCE,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...; default: a GPU for each worker.")] = None,
    dtype: Dtype = None,
    fp8: Fp8 = False,
) -> None:
    """Decode the prompts of a file; a killed job that is started again continues where it stopped."""
    if raw and system is not None:
        raise DapdError("--raw continues a text as it stands; it takes no --system")
    spread = Spread(workers, ray, address, patience)
    chosen, options = read_settings(strategy, settings or [], Options(early_stop=True))
    plan = Plan(chosen, max_new_tokens, options, system, raw)
    files.check_ending(output)
    check_writable(output, source)
    check_own(output)
    rows = read_rows(source, plan)
    if ignored := without_meaning(rows):
        crew.note(f"columns of the input that are ignored: {', '.join(ignored)}")
    recipe = Recipe(model, device, pick_dtype(dtype), fp8, places)
    console = Console(stderr=True)
    with (
        crew.resumable(),
        Working(console, "rows", len(rows)) as work,
        gathered(recipe, spread, crew.note, in_one=True) as team,
    ):
        if spread.is_here:
            calm_threads(team.lm.network)
        records = run(rows, plan, team, output, work.advance)
    errors = [record for record in records if "error" in record]
    failed = f", {len(errors)} of them with an error instead of a text" if errors else ""
    print(f"written: {output}, {plural(len(records), 'result')}{failed} (kept in {parts_of(output)})", file=sys.stderr)
    if errors:
        crew.note(f"the first error, in row {errors[0]['id']!r}: {errors[0]['error']}")
    if len(errors) == len(records):
        raise typer.Exit(1)
