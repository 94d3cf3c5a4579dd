"""`dapd lab`: the tasks of the lab, and the training of its model."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias, get_args

import typer
from rich.console import Console
from rich.markup import escape

from dapd.cli import crew, tables
from dapd.decoding.sampling import EosPolicy
from dapd.errors import DapdError, unknown
from dapd.evaluation.runs import difference
from dapd.io.files import check_writable, make_folder, parse_json, write_text
from dapd.io.table import Table
from dapd.io.wording import plural
from dapd.lab import tasks
from dapd.lab.checkpoint import checksums
from dapd.lab.evaluate import Exam, TaskScore, Way, evaluate_ways
from dapd.lab.settings import TrainSettings, with_values
from dapd.lab.tokenizer import LabTokenizer

app = typer.Typer(help="The lab: tasks with known answers, and the small model trained on them.", no_args_is_help=True)
console = Console()

Names = Annotated[
    list[str] | None,
    typer.Option("--task", "-t", help="Names of tasks, separated by commas; may be repeated. Default: all."),
]
Seed = Annotated[int, typer.Option(help="Seed of the prompts.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto.")]
Folder = Annotated[Path, typer.Argument(help="A checkpoint folder, or lab, the model that ships with dapd.")]
Tf32 = Annotated[bool, typer.Option(help="Matrix products in TF32: faster on a GPU, a little coarser.")]

WAYS = (Way(), Way(block=32), Way(eos="ban"))
"""How a model is scored at the end of its training: every task does well in one of these."""


Scores: TypeAlias = dict[str, dict[Way, TaskScore]]
"""The score of each task in every way that its canvas allows."""


def _chosen(names: Sequence[str] | None) -> list[tasks.Task]:
    if not names:
        return list(tasks.TASKS.values())
    return [tasks.get(name.strip()) for listed in names for name in listed.split(",")]


@app.command("tasks")
def list_tasks() -> None:
    """List the tasks: what is scored, and which dependency graph is known."""
    rows = [(task.name, task.scored, task.graph or "not known", str(task.room)) for task in tasks.TASKS.values()]
    tables.show(console, Table(("task", "scored", "true edges", "tokens"), rows, words=3))


@app.command()
def prompts(
    task: Names = None,
    n: Annotated[int, typer.Option("--prompts", "-p", "-n", min=1, help="Prompts of each task.")] = 1,
    seed: Seed = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print each prompt as a line of JSON.")] = False,
    bare: Annotated[bool, typer.Option("--bare", help="Print one prompt alone, for `... | dapd generate`.")] = False,
) -> None:
    """Show example prompts with a right answer each. None of them was seen in training."""
    examples = [example for chosen in _chosen(task) for example in chosen.examples(n, seed)]
    if bare and len(examples) > 1:
        raise DapdError(
            f"--bare prints one prompt, and these are {len(examples)}, which `dapd generate` would read as one; "
            "for several, save the output of --json as a .jsonl file, which `dapd batch` reads"
        )
    for example in examples:
        if bare:
            print(example.prompt)
        elif as_json:
            print(json.dumps({"task": example.task, "prompt": example.prompt, "answer": example.answer}))
        else:
            console.rule(f"[bold]{example.task}", align="left")
            console.print(f"{escape(example.prompt)}\n", soft_wrap=True, highlight=False)
            console.print(f"[dim]{escape(example.answer)}", soft_wrap=True, highlight=False)


@app.command()
def train(
    out: Annotated[Path, typer.Option(help="Folder for the finished checkpoint.")],
    run: Annotated[Path, typer.Option(help="Folder for the state of the run, from which a killed run continues.")],
    minutes: Annotated[
        float, typer.Option(help="The most minutes that the whole command may take; 0: no limit.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the data, the weights and the masks.")] = 0,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help=f"NAME=VALUE; names: {', '.join(TrainSettings.__dataclass_fields__)}."),
    ] = None,
    resume: Annotated[bool, typer.Option(help="Continue from the state in the run folder.")] = False,
    stop: Annotated[
        float, typer.Option(help="Pause after this many minutes: the state is saved, --resume continues. 0: never.")
    ] = 0.0,
) -> None:
    """Train the lab model, export it and evaluate the export step by step."""
    started = time.monotonic()
    from dapd.lab.train import RECORD, STATE, Trainer

    settings = with_values(TrainSettings(), [f"minutes={minutes}", f"seed={seed}", *(change or ())])
    make_folder(run)
    _claim(run, settings, resume, STATE)
    check_writable(make_folder(out) / RECORD)
    with crew.resumable(lambda: _way_on(run / STATE)):
        trainer = Trainer(settings, run, _report, started)
        finished = trainer.run(60 * stop or math.inf)
    record = trainer.record()
    trainer.export(out)
    record["sha256"] = checksums(out)
    _write(out / RECORD, record)
    console.print(f"trained {record['steps']} steps in {record['seconds']} s, weights in {out}")
    if not finished:
        console.print(f"paused at {trainer.progress:.0%}; the same command with --resume continues")
    elif settings.prompts:
        exam = Exam(settings.prompts, settings.seed)
        scores = _evaluate(out, _chosen(settings.tasks), exam, WAYS, str(trainer.device))
        record["scores"] = _as_record(scores)
        _write(out / RECORD, {**record, "seconds_in_all": round(time.monotonic() - started, 1)})


def _claim(run: Path, settings: TrainSettings, resume: bool, state: str) -> None:
    """Make sure that a run folder holds this run and no other one."""
    kept = run / "settings.json"
    wanted = json.loads(json.dumps({k: v for k, v in vars(settings).items() if k not in ("minutes", "reserve")}))
    if (run / state).is_file():
        if not resume:
            raise DapdError(f"{run} holds a run already: continue it with --resume, or give another folder")
        try:
            differ = difference(parse_json(kept.read_bytes()), wanted)
        except (OSError, ValueError, AttributeError):
            raise DapdError(f"{kept} is missing or damaged: {run} cannot be resumed; move that folder away") from None
        if differ:
            said = ", ".join(differ)
            raise DapdError(f"{run} holds a run with other settings ({said}); --resume needs those in {kept}")
    elif resume:
        raise DapdError(f"{run} holds no state to resume from; leave out --resume")
    _write(kept, wanted)


def _way_on(state: Path) -> str:
    """How to continue a run that was interrupted."""
    if state.is_file():
        return "the same command with --resume continues from the last state that was saved"
    return "no state was saved yet (save_every), so the same command begins anew"


def _write(path: Path, content: dict[str, Any]) -> None:
    write_text(path, json.dumps(content, indent=2) + "\n")


def _report(record: dict[str, Any]) -> None:
    values = {key: value for key, value in record.items() if key != "step"}
    line = "  ".join(f"{key} {value}" for key, value in values.items())
    print(f"step {record['step']}  {line}", flush=True)


def _evaluate(folder: Path, chosen: Sequence[tasks.Task], exam: Exam, ways: Sequence[Way], device: str) -> Scores:
    """Score the checkpoint in a folder in several ways; print the table, and some of the answers that are wrong."""
    from dapd.models import load_network

    network = load_network(folder, device=device)
    tokenizer = LabTokenizer.load(folder)
    scores = {task.name: evaluate_ways(network, tokenizer, task, exam, ways) for task in chosen}
    tables.show(console, _as_table(scores, ways))
    for rows in scores.values():
        best = rows[_best(rows)]
        for prompt, text in best.misses:
            shown = f"{escape(repr(prompt))} -> {escape(repr(text))}"
            console.print(f"[bold]wrong in {best.task}[/]: {shown}", soft_wrap=True)
    return scores


def _best(rows: dict[Way, TaskScore]) -> Way:
    """The way with the highest score, which is the ceiling of the task."""
    return max(rows, key=lambda way: rows[way].score)


def _as_table(scores: Scores, ways: Sequence[Way]) -> Table:
    """The score in each way, empty where the canvas does not allow it, and the share wholly right in the best way."""
    lines = []
    for task, rows in scores.items():
        best = _best(rows)
        cells = [f"{100 * rows[way].score:.1f}" if way in rows else "" for way in ways]
        lines.append((task, best.label, str(rows[best].prompts), *cells, f"{100 * rows[best].whole:.1f}"))
    head = ("task", "best way", "prompts", *(f"{way.label} %" for way in ways), "wholly right %")
    return Table(head, lines, "step by step", words=2)


def _as_record(scores: Scores) -> dict[str, Any]:
    """The scores as they are kept with the weights; the best way of a task gives its score."""
    best = {task: _best(rows) for task, rows in scores.items()}
    return {
        task: {
            "prompts": rows[best[task]].prompts,
            "score": rows[best[task]].score,
            "whole": rows[best[task]].whole,
            "way": best[task].label,
            "ways": {way.label: row.score for way, row in rows.items()},
        }
        for task, rows in scores.items()
    }


@app.command()
def score(
    model: Folder,
    task: Names = None,
    n: Annotated[int, typer.Option("--prompts", "-p", "-n", min=1, help="Prompts of each task.")] = 100,
    seed: Seed = 0,
    block: Annotated[
        str, typer.Option(help="Block lengths, separated by commas; 0: one block, 1/2: two halves.")
    ] = "0,32",
    eos: Annotated[
        str, typer.Option(help="Rules for EOS, separated by commas: none, defer, ban, ban+defer.")
    ] = "none,ban",
    record: Annotated[bool, typer.Option(help="Write the scores into the folder's training.json.")] = False,
    device: Device = "auto",
    tf32: Tf32 = False,
    save_table: tables.SaveTable = None,
) -> None:
    """Score a model on test prompts, decoding step by step, with every combination of block length and EOS rule."""
    tables.check_files(save_table)
    folder = _folder(model)
    ways = ways_of(block, eos)
    path = folder / "training.json"
    if record and (folder != model or not path.is_file()):  # the model that ships keeps the scores that it came with
        raise DapdError(f"--record writes to the training.json of a folder of your own, which {model} does not have")
    scores = _evaluate(folder, _chosen(task), Exam(n, seed), ways, _device(device, tf32))
    tables.save(save_table, _as_table(scores, ways))
    if record:
        _write(path, {**json.loads(path.read_text(encoding="utf-8")), "scores": _as_record(scores)})


def ways_of(blocks: str, policies: str) -> list[Way]:
    """Every combination of block lengths and EOS rules."""
    allowed = get_args(EosPolicy)
    for policy in policies.split(","):
        if policy not in allowed:
            raise unknown("EOS rule", policy, allowed)
    if not all(re.fullmatch(r"\d+|1/[1-9]\d*", block.strip()) for block in blocks.split(",")):
        raise DapdError(f"block is {blocks!r}; it must be lengths separated by commas, 0 for one block, 1/2 for halves")
    return [_way(block.strip(), policy) for policy in policies.split(",") for block in blocks.split(",")]  # type: ignore[arg-type]


def _way(block: str, eos: EosPolicy) -> Way:
    """A way from the text of its block: a length, 0 for one block, or a part of the canvas such as 1/2."""
    part, slash, parts = block.partition("/")
    return Way(None, eos, int(parts)) if slash else Way(int(part) or None, eos)


def _folder(model: Path) -> Path:
    """The folder of a model that may be given by a name."""
    from dapd.models import resolve
    from dapd.models.source import ANY_TEXT

    return resolve("lab" if str(model) == ANY_TEXT else model)  # these tasks hold no word that it does not know


def _device(device: str, tf32: bool) -> str:
    """The device to use, with the precision of its matrix products set."""
    import torch

    from dapd.models.devices import pick_device

    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    return str(pick_device(device))


@app.command("gauge")
def show_gauge(
    model: Folder,
    task: Annotated[str, typer.Option("--task", "-t", help="Name of a task.")] = "quiz-5",
    n: Annotated[int, typer.Option("--prompts", "-p", "-n", min=1, help="Number of prompts.")] = 64,
    seed: Seed = 0,
    device: Device = "auto",
    tf32: Tf32 = False,
) -> None:
    """Measure how sure a model is of its text before anything is decided, and how fast a threshold decoder goes."""
    from dapd.lab.gauge import SURE, gauge
    from dapd.models import load_network

    folder = _folder(model)
    network = load_network(folder, device=_device(device, tf32))
    regime = gauge(network, LabTokenizer.load(folder), tasks.get(task), Exam(n, seed))
    rows = [
        (f"positions with confidence {SURE} and more, EOS aside", f"{regime.sure:.1%}"),
        ("median confidence", f"{regime.confidence:.3f}"),
        ("median entropy", f"{regime.entropy:.2f} nats"),
        ("positions that predict the end", f"{regime.past_end:.1%}"),
        ("passes of Fast-dLLM 0.9, block 32", f"{regime.passes:.1f}"),
        ("tokens a pass, EOS included", f"{regime.pace:.2f}"),
        ("tokens a pass, text alone", f"{regime.text_pace:.2f}"),
    ]
    title = f"{regime.task}, {plural(regime.prompts, 'prompt')}, nothing decided"
    tables.show(console, Table(("measure", "value"), rows, title))
    for complaint in regime.complaints():
        console.print(f"outside of the regime: {complaint}", soft_wrap=True)
