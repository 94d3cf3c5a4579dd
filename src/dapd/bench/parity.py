"""Whether the fast path decides as the reference path does: torch operations alone, no recorded graphs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from dapd import Options, Step, decode, kernels
from dapd.bench.cases import Record
from dapd.canvas import Canvas
from dapd.errors import DapdError
from dapd.generation import DiffusionLM
from dapd.lab.tasks import Split, get
from dapd.settings import setting
from dapd.strategies import Strategy

Commit = tuple[int, int, int, int]
"""Row, step, column, token."""


@dataclass(frozen=True)
class Run:
    """One decoding: what was committed when, and what stood on the canvas before each step."""

    commits: frozenset[Commit]
    before: tuple[Canvas, ...]
    steps: tuple[Step, ...]


def prompts(lm: DiffusionLM, task: str, n_prompts: int, seed: int = 0) -> tuple[list[list[int]], int]:
    """Test prompts of a lab task as ids, and how many tokens their answers may take."""
    if n_prompts < 1:
        raise DapdError(f"prompts is {n_prompts}; it must be at least 1")
    chosen, rng = get(task), random.Random(seed)
    texts = [chosen.make(rng, Split.TEST).prompt for _ in range(n_prompts)]
    chat = lm.tokenizer.has_chat
    return [lm.encode([{"role": "user", "content": t}] if chat else t) for t in texts], chosen.room


def run(lm: DiffusionLM, canvas: Canvas, strategy: Strategy, *, reference: bool) -> Run:
    """Decode to the end on one of the two paths."""
    commits: set[Commit] = set()
    before, steps, now = [], [], canvas
    with kernels.disabled() if reference else nullcontext():
        for step in decode(lm.network, canvas, strategy, Options(graphs=False if reference else None)):
            before.append(now)
            steps.append(step)
            commits |= _commits(step, step.index)
            now = step.canvas
    return Run(frozenset(commits), tuple(before), tuple(steps))


def _commits(step: Step, index: int) -> set[Commit]:
    where = step.commit.nonzero().tolist()
    tokens = step.token[step.commit].tolist()
    return {(row, index, step.window.start + n, token) for (row, n), token in zip(where, tokens, strict=True)}


def forced(lm: DiffusionLM, strategy: Strategy, reference: Run) -> int:
    """Commits that differ where the fast path starts every step from the reference's canvas, be it of another dtype.

    Once two trajectories part they stay apart; this counts the decisions that differ by themselves.
    """
    differing = 0
    for canvas, step in zip(reference.before, reference.steps, strict=True):
        own = next(decode(lm.network, canvas, strategy, Options(graphs=False)))
        differing += len(_commits(step, 0) - _commits(own, 0))
    return differing


def compare(lm: DiffusionLM, ids: list[list[int]], n_new: int, name: str, baseline: Run | None) -> tuple[Record, Run]:
    """The fast path beside the reference path in the model's own dtype, and beside an earlier reference."""
    strategy, profile = setting(name).strategy, lm.network.profile
    canvas = Canvas.blank(ids, n_new, mask_id=profile.mask_id, pad_id=profile.pad_id, device=lm.network.device)
    reference = run(lm, canvas, strategy, reference=True)
    fast = run(lm, canvas, strategy, reference=False)
    total = len(reference.commits)
    differ, alone = len(reference.commits - fast.commits), forced(lm, strategy, reference)
    final = (reference.steps[-1].canvas.tokens != fast.steps[-1].canvas.tokens).any(-1)
    record: Record = {
        "strategy": name,
        "rows": len(ids),
        "commits": total,
        "differing": differ,
        "differing_share": differ / total,
        "differing_forced": alone,
        "differing_forced_share": alone / total,
        "rows_with_other_text": int(final.sum()),
        "first_difference": min((c[1] for c in reference.commits ^ fast.commits), default=None),
        "versus_first_dtype": None if baseline is None else len(baseline.commits - reference.commits) / total,
        "forced_versus_first_dtype": None if baseline is None else forced(lm, strategy, baseline) / total,
    }
    return record, reference


def parity(
    loaded: Iterator[tuple[str, DiffusionLM]], strategies: list[str], task: str, n_prompts: int
) -> Iterator[Record]:
    """A record for each dtype and strategy; the first dtype is what the others are compared with as well."""
    baselines: dict[str, Run] = {}
    for dtype, lm in loaded:
        ids, n_new = prompts(lm, task, n_prompts)
        for name in strategies:
            about = {"kind": "parity", "model": lm.name, "device": lm.network.device.type, "dtype": dtype, "task": task}
            try:
                with torch.no_grad():
                    record, reference = compare(lm, ids, n_new, name, baselines.get(name))
            except Exception as error:
                yield {**about, "strategy": name, "error": f"{type(error).__name__}: {error}"}
                continue
            baselines.setdefault(name, reference)
            yield {**about, **record}
