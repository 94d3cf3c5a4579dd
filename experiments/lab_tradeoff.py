"""Every decoder on the lab's tasks, on several models: a sweep over its knob, its blocks and its treatment of EOS.

    python experiments/lab_tradeoff.py -m lab -m out/lab-1 -m out/lab-2 --out out/tradeoff \\
        --device cuda --dtype bfloat16 --processes 14
    python experiments/lab_tables.py out/tradeoff --out docs/lab/tradeoff

The first command decodes, the second makes tables and a figure of whatever is complete. A run that was killed, or whose
minutes were used up, goes on where it was with the same command. Results are in OUT/MODEL/TASK. Baselines depend on
their blocks and on the treatment of EOS, so all decoders are given every combination of both that fits a task's canvas.
"""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from dapd.cli import run
from dapd.cli.lab import ways_of
from dapd.cli.models import calm_threads
from dapd.cli.progress import Working
from dapd.errors import DapdError
from dapd.evaluation.compare import Comparison, decoders
from dapd.generation import DEFAULT_MODEL, DiffusionLM, load
from dapd.lab.evaluate import Way
from dapd.lab.tasks import get
from dapd.models import resolve
from dapd.models.devices import pick_dtype

PROMPTS = {
    "quiz-5": 36,
    "story": 40,
    "code": 40,
    "record": 40,
    "scene": 40,
    "sentence": 64,
    "shuffle": 64,
    "latin": 64,
    "sudoku": 64,
    "tied": 18,
}
"""Test prompts of each task, the most telling tasks first: that is the order of the work."""

SWEEP = (
    "dapd-direct:tau_max=0.02/0.05/0.15",
    "dapd-staged:tau_max=0.05/0.15/0.3",
    "fast-dllm:threshold=0.7/0.9/0.95",
    "eb-sampler:gamma=0.1/0.5/1",
    "klass:confidence=0.6/0.9",
    "local-leap:relaxed=0.6/0.75",
    "fast-dllm-factor:factor=0.5/1/2",
    "dawn:low=0.7/0.8",
    "original:k=1/2/4",
)
BLOCKS = "0,96,32,16"
EOS = "none,defer,ban"

IN_ONE_BLOCK = (
    "dapd-direct:tau_max=0.05,layers=1.0",
    "control-shuffled:shortcut=direct,tau_max=0.05",
    "control-confidence:shortcut=direct,tau_max=0.05",
    "control-distance:width=4/16,shortcut=direct",
)
"""Decoders that show what the graph and its order contribute: DAPD with other layers, with other edges, and in the
order of confidence."""

QUESTIONS = tuple(f"quiz-{n}" for n in (1, 2, 3, 4, 6, 7, 8))
QUESTION_PROMPTS = 16
QUESTION_SWEEP = (
    "dapd-direct:tau_max=0.05",
    "dapd-staged:tau_max=0.15",
    "fast-dllm:threshold=0.9,block_length=32",
    "eb-sampler:gamma=0.1,block_length=32",
    "klass:confidence=0.9,block_length=32",
)
"""Decoders that are run on prompts with more and with fewer questions; five questions are in the large sweep."""


@dataclass(frozen=True)
class Job:
    """One part of the sweep: some decoders on a task with a model."""

    model: str
    task: str
    prompts: int
    specs: tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """Where results are written, on which device jobs run, and until when."""

    out: Path
    device: str | None
    dtype: str
    tf32: bool
    until: float
    """Time of day, in seconds, at which no further prompt is begun."""


class TimeIsUpError(Exception):
    """The minutes of the command are used up."""


def main(
    models: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="May be repeated: one for each seed.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("tradeoff"),
    tasks: Annotated[str | None, typer.Option(help="Tasks, separated by commas. Default: all of the sweep.")] = None,
    prompts: Annotated[
        int | None, typer.Option(min=1, help="Test prompts of each task. Default: 16 to 64, by the task.")
    ] = None,
    block: Annotated[
        str, typer.Option(help="Block lengths, separated by commas; 0: one block, 1/2: two halves.")
    ] = BLOCKS,
    eos: Annotated[str, typer.Option(help="What becomes of EOS: none, defer, ban, separated by commas.")] = EOS,
    also: Annotated[str, typer.Option("--set", help="Further fields of every decoder, as eos_run=0.5/0.7.")] = "",
    only: Annotated[str, typer.Option(help="Only decoders whose name holds this.")] = "",
    processes: Annotated[int, typer.Option(min=1, help="Processes that share the device.")] = 1,
    minutes: Annotated[float, typer.Option(help="Stop after so many; 0: when all is done.")] = 0.0,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...")] = None,
    dtype: Annotated[str, typer.Option(help="Precision of the model: float32, bfloat16.")] = "float32",
    tf32: Annotated[bool, typer.Option(help="Matrix products in TF32: faster on a GPU, a little coarser.")] = False,
) -> None:
    """Decode the lab's tasks with every decoder under every setting."""
    names = [name for name in (tasks or ",".join((*PROMPTS, *QUESTIONS))).split(",") if get(name)]
    chosen = [model for model in models or [DEFAULT_MODEL] if resolve(model)]
    if len({folder_of(model) for model in chosen}) < len(chosen):
        raise DapdError("two of the models have folders of one name; results go by that name")
    ways = ways_of(block, eos)
    jobs = [
        Job(model, name, prompts or PROMPTS.get(name, QUESTION_PROMPTS), specs)
        for name in names
        for specs in sweep(name, ways, only, also)
        for model in chosen
    ]
    place = Place(out, device, dtype, tf32, time.time() + 60 * minutes if minutes else math.inf)
    total = sum(job.prompts * len(labels(job)) for job in jobs)
    with Working(Console(stderr=True), "decoding", total) as work:
        finished = sum(worked(jobs, place, processes, work.advance))
    left = "" if finished == len(jobs) else "; the same command goes on from here"
    print(f"{finished} of {len(jobs)} parts of the sweep are complete{left}: python experiments/lab_tables.py {out}")


def folder_of(model: str) -> str:
    return Path(model).name


def sweep(task: str, ways: Sequence[Way], only: str = "", also: str = "") -> Iterator[tuple[str, ...]]:
    """The decoders for a task in groups: those whose text contains `only`, each with the fields of `also`."""
    fitting = [way for way in ways if way.fits(get(task).room)]
    in_all_ways = [tuple(spec + loop_fields(way) for way in fitting) for spec in SWEEP]
    specs = [(spec,) for spec in QUESTION_SWEEP] if task in QUESTIONS else [*in_all_ways, IN_ONE_BLOCK]
    for group in specs:
        if kept := tuple(f"{spec},{also}" if also else spec for spec in group if only in spec):
            yield kept


def loop_fields(way: Way) -> str:
    """A way as additional fields in the text of a decoder."""
    blocks = f",n_blocks={way.n_blocks}" if way.n_blocks > 1 else ""
    block = blocks if way.block is None else f",block_length={way.block}"
    return block + ("" if way.eos == "none" else f",eos={way.eos}")


def labels(job: Job) -> list[str]:
    return [decoder.label for spec in job.specs for decoder in decoders(spec)]


def worked(jobs: Sequence[Job], place: Place, processes: int, progress: Callable[[int], None]) -> Iterator[bool]:
    """Run all jobs and give for each, as soon as it is known, whether it was finished."""

    def told(job: Job, finished: bool) -> bool:
        progress(finished * job.prompts * len(labels(job)))
        return finished

    if processes == 1:
        yield from (told(job, decoded(job, place)) for job in jobs)
        return
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(decoded, job, place): job for job in jobs}
        yield from (told(running[future], future.result()) for future in as_completed(running))


def decoded(job: Job, place: Place) -> bool:
    """Decode the prompts that are missing in the results of a job; return whether it was finished in time."""

    def watch(_: int) -> None:
        if time.time() > place.until:
            raise TimeIsUpError

    try:
        watch(0)
        lm = loaded(job.model, place.device, place.dtype, place.tf32)
        chosen = [decoder for spec in job.specs for decoder in decoders(spec)]
        comparison = Comparison(lm, chosen, [get(job.task)], job.prompts, batch=job.prompts)
        comparison.run(place.out / folder_of(job.model) / job.task, watch)
    except TimeIsUpError:
        return False
    return True


@lru_cache
def loaded(model: str, device: str | None, dtype: str, tf32: bool) -> DiffusionLM:
    """A model, loaded once in every process."""
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    lm = load(model, device=device, dtype=pick_dtype(dtype))
    calm_threads(lm.network)
    return lm


if __name__ == "__main__":
    run(main)
