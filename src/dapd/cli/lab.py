"""`dapd lab`: the tasks of the lab, and the training of its model."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from dapd.cli import tables
from dapd.errors import DapdError
from dapd.io.table import Table
from dapd.lab import tasks
from dapd.lab.checkpoint import checksums
from dapd.lab.evaluate import TaskScore, evaluate
from dapd.lab.settings import TrainSettings, with_values
from dapd.lab.tokenizer import LabTokenizer

app = typer.Typer(help="The lab: tasks with known answers, and the small model trained on them.", no_args_is_help=True)
console = Console()

Names = Annotated[list[str] | None, typer.Option("--task", "-t", help="Name of a task; repeat for more. Default: all.")]
Seed = Annotated[int, typer.Option(help="Seed of the prompts.")]


def _chosen(names: Sequence[str] | None) -> list[tasks.Task]:
    return [tasks.get(name) for name in names] if names else list(tasks.TASKS.values())


@app.command("tasks")
def list_tasks() -> None:
    """List the tasks: what is scored, and which dependency graph is known."""
    rows = [(task.name, task.scored, task.graph or "not known", str(task.room)) for task in tasks.TASKS.values()]
    tables.show(console, Table(("task", "scored", "true edges", "tokens"), rows, words=3))


@app.command()
def prompts(
    task: Names = None,
    n: Annotated[int, typer.Option("-n", min=1, help="Prompts of each task.")] = 1,
    seed: Seed = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print each prompt as a line of JSON.")] = False,
    bare: Annotated[bool, typer.Option("--bare", help="Print the prompt alone, for `... | dapd generate`.")] = False,
) -> None:
    """Show example prompts with a right answer each. None of them was seen in training."""
    for chosen in _chosen(task):
        for example in chosen.examples(n, seed):
            if bare:
                print(example.prompt)
            elif as_json:
                print(json.dumps({"task": example.task, "prompt": example.prompt, "answer": example.answer}))
            else:
                console.rule(f"[bold]{chosen.name}", align="left")
                console.print(escape(example.prompt), soft_wrap=True, highlight=False)
                console.print(f"[dim]{escape(example.answer)}", soft_wrap=True, highlight=False)


@app.command()
def train(
    out: Annotated[Path, typer.Option(help="Folder for the finished checkpoint.")],
    run: Annotated[Path, typer.Option(help="Folder for the state of the run, from which a killed run goes on.")],
    minutes: Annotated[float, typer.Option(help="Longest time of the whole command; 0: no limit.")] = 9.0,
    seed: Annotated[int, typer.Option(help="Seed of the data, the weights and the masks.")] = 0,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help=f"NAME=VALUE; names: {', '.join(TrainSettings.__dataclass_fields__)}."),
    ] = None,
    resume: Annotated[bool, typer.Option(help="Go on from the state in the run folder.")] = False,
) -> None:
    """Train the lab model, export it and evaluate the export step by step."""
    started = time.monotonic()
    from dapd.lab.train import RECORD, STATE, Trainer

    settings = with_values(TrainSettings(), [f"minutes={minutes}", f"seed={seed}", *(change or ())])
    run.mkdir(parents=True, exist_ok=True)
    _claim(run, settings, resume, STATE)
    trainer = Trainer(settings, run, _report, started)
    trainer.run()
    record = trainer.record()
    trainer.export(out)
    record["sha256"] = checksums(out)
    _write(out / RECORD, record)
    console.print(f"trained {record['steps']} steps in {record['seconds']} s, weights in {out}")
    if settings.prompts:
        scores = _evaluate(out, settings.tasks, settings.prompts, settings.seed, str(trainer.device))
        record["scores"] = {
            row.task: {key: getattr(row, key) for key in ("prompts", "score", "whole")} for row in scores
        }
        _write(out / RECORD, {**record, "seconds_in_all": round(time.monotonic() - started, 1)})


def _claim(run: Path, settings: TrainSettings, resume: bool, state: str) -> None:
    """Make sure that a run folder holds this run and no other one."""
    kept = run / "settings.json"
    wanted = json.loads(json.dumps({k: v for k, v in vars(settings).items() if k not in ("minutes", "reserve")}))
    if (run / state).is_file():
        if not resume:
            raise DapdError(f"{run} holds a run already: go on with --resume, or give another folder")
        if json.loads(kept.read_text(encoding="utf-8")) != wanted:
            raise DapdError(f"{run} holds a run with other settings ({kept}); it cannot be resumed with these")
    elif resume:
        raise DapdError(f"{run} holds no state to resume from")
    _write(kept, wanted)


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _report(record: dict[str, Any]) -> None:
    values = {key: value for key, value in record.items() if key != "step"}
    line = "  ".join(f"{key} {value}" for key, value in values.items())
    print(f"step {record['step']}  {line}", flush=True)


def _evaluate(folder: Path, names: Sequence[str], n: int, seed: int, device: str) -> list[TaskScore]:
    """Score the checkpoint in a folder; print the table, and some of the answers that are wrong."""
    from dapd.models import load_network

    network = load_network(folder, device=device)
    scores = list(evaluate(network, LabTokenizer.load(folder), _chosen(names), n, seed=seed))
    tables.show(console, _as_table(scores))
    for row in scores:
        for prompt, text in row.misses:
            shown = f"{escape(repr(prompt))} -> {escape(repr(text))}"
            console.print(f"[bold]wrong in {row.task}[/]: {shown}", soft_wrap=True)
    return scores


def _as_table(scores: Sequence[TaskScore]) -> Table:
    rows = [(row.task, str(row.prompts), f"{100 * row.score:.2f}", f"{100 * row.whole:.2f}") for row in scores]
    return Table(("task", "prompts", "score %", "wholly right %"), rows, "step by step")


@app.command()
def score(
    model: Annotated[Path, typer.Argument(help="Checkpoint folder, or lab, the model that ships.")],
    task: Names = None,
    n: Annotated[int, typer.Option("-n", min=1, help="Prompts of each task.")] = 100,
    seed: Seed = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    save_table: tables.SaveTable = None,
) -> None:
    """Score a model on test prompts, decoding step by step."""
    from dapd.models import resolve
    from dapd.models.devices import pick_device
    from dapd.models.source import ANY_TEXT

    tables.check_files(save_table)
    folder = resolve("lab" if str(model) == ANY_TEXT else model)  # these tasks hold no word that it does not know
    scores = _evaluate(folder, [chosen.name for chosen in _chosen(task)], n, seed, str(pick_device(device)))
    tables.save(save_table, _as_table(scores))
