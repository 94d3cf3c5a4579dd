"""How text is unmasked over normalised progress: where (the heat map), and in how many separate pieces (the curve)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dapd.evaluation.runs import Record
from dapd.generation import Completion, DiffusionLM
from dapd.trace import Record as TraceRecord
from dapd.trace import Trace

GRID = 50
"""Number of points of normalised progress, apart from 0."""


@dataclass(frozen=True)
class Behaviour:
    """The average decoding of one method."""

    unmasked: list[list[float]]
    """[progress][position]: the share of samples in which the position is decided by progress 1/GRID, ..., 1."""
    when: list[float]
    """[position]: mean progress at which it is decided."""
    segments: list[float]
    """Mean number of separate decided pieces at progress 0, 1/GRID, ..., 1."""
    segments_by_step: list[float]
    """The same at step 1, 2, ..., over the samples that take that many steps."""
    starts: list[float | None]
    """Mean position at which the answer to each question begins; None where no sample has its mark."""


def observe(model: DiffusionLM, done: Completion, n_questions: int) -> dict[str, Any]:
    """What the analysis needs of one decoding: the step of every position, the pieces after every step, the marks."""
    first = len(done.prompt_ids)
    order = [0] * len(done.ids)
    for record in done.trace.steps:
        for position in (*record.positions, *record.tail):
            order[position - first] = record.step
    pieces = [record.segments for record in done.trace.steps]
    return {"order": order, "segments": pieces, "starts": mark_starts(model, done.ids, n_questions)}


def mark_starts(model: DiffusionLM, ids: list[int], n: int) -> list[int | None]:
    """The index of the token at which each mark [1]..[n] begins; None for a mark that the answer lacks."""
    decode = model.tokenizer.decode
    starts: list[int | None] = []
    for number in range(1, n + 1):
        mark = f"[{number}]"
        if mark not in decode(ids):
            starts.append(None)
            continue
        low, high = 0, len(ids)  # the mark is in the first `high` tokens and not in the first `low`
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if mark in decode(ids[:middle]) else (middle, high)
        # From its last token back to its first: dropping tokens from the left leaves the mark until it is cut.
        first = high - 1
        while first > 0 and mark not in decode(ids[first:high]):
            first -= 1
        starts.append(first)
    return starts


def behaviour(records: Sequence[Record]) -> Behaviour:
    """The average over samples. A sample's progress is the number of the step over the sample's number of steps."""
    order = torch.tensor([record["order"] for record in records], dtype=torch.float64)
    total = torch.tensor([[record["nfe"]] for record in records], dtype=torch.float64)
    progress = order / total.clamp_min(1)
    grid = torch.arange(1, GRID + 1, dtype=torch.float64) / GRID
    unmasked = torch.stack([(progress <= point + 1e-9).double().mean(0) for point in grid])
    starts = [[r["starts"][k] for r in records if r["starts"][k] is not None] for k in range(len(records[0]["starts"]))]
    return Behaviour(
        unmasked=[[round(value, 4) for value in row] for row in unmasked.tolist()],
        when=[round(value, 4) for value in progress.mean(0).tolist()],
        segments=_curve([record["segments"] for record in records]),
        segments_by_step=_by_step([record["segments"] for record in records]),
        starts=[sum(places) / len(places) if places else None for places in starts],
    )


def as_trace(record: Record, strategy: dict[str, Any]) -> Trace:
    """A trace without tokens, for figures: positions, steps and pieces are the record's, its texts the marks alone."""
    marks = {place: f"[{n}]" for n, place in enumerate(record["starts"], 1) if place is not None}
    by_step: dict[int, list[int]] = {}
    for position, step in enumerate(record["order"]):
        by_step.setdefault(step, []).append(position)
    left = len(record["order"])
    steps = []
    for step, pieces in enumerate(record["segments"], 1):
        positions = by_step.get(step, [])
        left -= len(positions)
        steps.append(
            TraceRecord(
                step=step,
                positions=positions,
                tokens=[-1] * len(positions),
                confidences=[0.0] * len(positions),
                masks_left=left,
                segments=pieces,
                seconds=0.0,
                texts=[marks.get(position, "") for position in positions],
            )
        )
    slots = list(range(len(record["order"])))
    return Trace([-1] * len(slots), slots, mask_id=-1, eos_id=-2, about={"strategy": strategy}, steps=steps)


def _curve(counts: Sequence[Sequence[int]]) -> list[float]:
    """The mean of step curves that are stretched to the same length."""
    points = []
    for k in range(GRID + 1):
        values = [one[math.ceil(k / GRID * len(one) - 1e-9) - 1] if k and one else 0 for one in counts]
        points.append(round(sum(values) / len(values), 4))
    return points


def _by_step(counts: Sequence[Sequence[int]]) -> list[float]:
    longest = max(map(len, counts))
    steps = [[one[k] for one in counts if len(one) > k] for k in range(longest)]
    return [round(sum(values) / len(values), 4) for values in steps]
