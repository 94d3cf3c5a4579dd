"""Whether the fast path makes the same decisions as the reference path.

The reference path uses torch operations alone: no kernels of this package and no recorded graphs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from dapd import kernels
from dapd.bench.cases import Record
from dapd.bench.pace import passes
from dapd.canvas import Canvas
from dapd.decoding import Options, Step
from dapd.errors import DapdError
from dapd.generation import DiffusionLM
from dapd.lab.tasks import Split, get
from dapd.settings import named
from dapd.strategies import Selects

Commit = tuple[int, int, int, int]
"""One committed token: its row, the pass, its position, and the token itself."""


@dataclass(frozen=True)
class Run:
    """One decoding of some rows."""

    commits: frozenset[Commit]
    before: tuple[tuple[Canvas, ...], ...]
    """The canvases of the rows that took part in each pass, as they stood before it."""
    steps: tuple[tuple[Step, ...], ...]
    """The steps of those rows, pass by pass and in the same order."""
    ends: tuple[list[int], ...]
    """The tokens of every row at the end."""


def canvases_of(lm: DiffusionLM, task: str, n_prompts: int, seed: int = 0) -> list[Canvas]:
    """Test prompts of a lab task, with as much room as their answers may take."""
    if n_prompts < 1:
        raise DapdError(f"prompts is {n_prompts}; it must be at least 1")
    chosen = get(task)
    rng = random.Random(seed)
    texts = [chosen.make(rng, Split.TEST).prompt for _ in range(n_prompts)]
    return [lm.canvas(lm.question(text), chosen.room) for text in texts]


def decoded(lm: DiffusionLM, canvases: Sequence[Canvas], strategy: Selects, *, reference: bool) -> Run:
    """Decode to the end on one of the two paths."""
    commits: set[Commit] = set()
    before = []
    steps = []
    now = list(canvases)
    options = Options(graphs=False if reference else None)
    with kernels.disabled() if reference else nullcontext():
        for number, done in enumerate(passes(lm.network, canvases, strategy, options, lm.recordings)):
            before.append(tuple(now[_row(step)] for step in done))
            steps.append(tuple(done))
            for step in done:
                commits |= _commits(step, number)
                now[_row(step)] = step.canvas
    return Run(frozenset(commits), tuple(before), tuple(steps), tuple(canvas.tokens.tolist() for canvas in now))


def _row(step: Step) -> int:
    return int(str(step.row))


def _commits(step: Step, number: int) -> set[Commit]:
    places = step.commit.nonzero().flatten().tolist()
    return {(_row(step), number, step.window.start + place, int(step.token[place])) for place in places}


def forced(lm: DiffusionLM, strategy: Selects, reference: Run) -> int:
    """Number of the reference's commits that the fast path does not make when every pass starts from its canvases.

    The reference may be of another dtype. Two decodings that have parted stay apart; this counts the decisions that
    differ for a reason of their own.
    """
    differing = 0
    for canvases, theirs in zip(reference.before, reference.steps, strict=True):
        ours = {_row(step): step for step in next(passes(lm.network, canvases, strategy, Options(graphs=False)))}
        for number, step in enumerate(theirs):
            own = {commit[2:] for commit in _commits(ours[number], 0)}
            differing += len({commit[2:] for commit in _commits(step, 0)} - own)
    return differing


def compare(lm: DiffusionLM, canvases: Sequence[Canvas], name: str, baseline: Run | None) -> tuple[Record, Run]:
    """Compare the fast path with the reference path in the model's own dtype: the record, and the reference's run.

    `baseline` is the reference's run in the first dtype: where it is given, this dtype's reference is compared with it,
    and so is the fast path, pass by pass from the same canvases.
    """
    strategy = named(name).strategy
    reference = decoded(lm, canvases, strategy, reference=True)
    fast = decoded(lm, canvases, strategy, reference=False)
    total = len(reference.commits)
    differ = len(reference.commits - fast.commits)
    alone = forced(lm, strategy, reference)
    record: Record = {
        "strategy": name,
        "rows": len(canvases),
        "commits": total,
        "differing": differ,
        "differing_share": differ / total,
        "differing_forced": alone,
        "differing_forced_share": alone / total,
        "rows_with_other_text": sum(a != b for a, b in zip(reference.ends, fast.ends, strict=True)),
        "first_difference": min((c[1] for c in reference.commits ^ fast.commits), default=None),
        "versus_first_dtype": None if baseline is None else len(baseline.commits - reference.commits) / total,
        "forced_versus_first_dtype": None if baseline is None else forced(lm, strategy, baseline) / total,
    }
    return record, reference


def parity(
    loaded: Iterator[tuple[str, DiffusionLM]], strategies: list[str], task: str, n_prompts: int
) -> Iterator[Record]:
    """A record for each dtype and strategy. Every other dtype is also compared with the first one."""
    baselines: dict[str, Run] = {}
    for dtype, lm in loaded:
        canvases = canvases_of(lm, task, n_prompts)
        for name in strategies:
            about = {"kind": "parity", "model": lm.name, "device": lm.network.device.type, "dtype": dtype, "task": task}
            try:
                with torch.no_grad():
                    record, reference = compare(lm, canvases, name, baselines.get(name))
            except Exception as error:
                yield {**about, "strategy": name, "error": f"{type(error).__name__}: {error}"}
                continue
            baselines.setdefault(name, reference)
            yield {**about, **record}
