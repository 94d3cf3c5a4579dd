"""Observations made by hand: a few positions, their confidences, perhaps attention."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dapd import Observation, Progress, Selection, Strategy

VOCAB = 5


def logits_of(confidence: list[float]) -> Tensor:
    """Token 1 with the given probability, the rest spread evenly over the other four."""
    p = [[c if token == 1 else (1 - c) / (VOCAB - 1) for token in range(VOCAB)] for c in confidence]
    return logs(p)


def logs(p: list[list[float]]) -> Tensor:
    """Logits of the given probabilities; what is impossible gets the lowest finite value, as from the engine."""
    lowest = torch.finfo(torch.float64).min
    return torch.tensor([[math.log(x) if x > 0 else lowest for x in row] for row in p], dtype=torch.float64)


def progress(
    rows: int = 1,
    *,
    remaining: int = 8,
    total: int = 8,
    block_total: int | None = None,
    step: int = 0,
    n_blocks: int = 1,
) -> Progress:
    return Progress(
        remaining=torch.full((rows,), remaining),
        total=torch.full((rows,), total),
        block_total=torch.full((rows,), total if block_total is None else block_total),
        step=torch.full((rows,), step),
        n_blocks=torch.full((rows,), n_blocks),
    )


def observe(
    *rows: list[float],
    masked: list[list[bool]] | None = None,
    logits: Tensor | None = None,
    attention: Tensor | None = None,
    noise: list[list[float]] | None = None,
    at: Progress | None = None,
    start: int = 0,
) -> Observation:
    """One row per list of confidences."""
    confidence = torch.tensor(rows, dtype=torch.float64)
    n = confidence.shape[1]
    given = torch.stack([logits_of(row) for row in rows]) if logits is None else logits
    return Observation(
        masked=torch.ones_like(confidence, dtype=torch.bool) if masked is None else torch.tensor(masked),
        token=torch.ones_like(confidence, dtype=torch.long),
        confidence=confidence,
        current=torch.full_like(confidence, 4, dtype=torch.long),
        progress=progress(len(rows)) if at is None else at,
        position=torch.arange(start, start + n).expand(len(rows), -1),
        window=torch.tensor([[start, start + n]] * len(rows)),
        block=torch.tensor([[start, start + n]] * len(rows)),
        make_logits=lambda: given,
        captured=attention if attention is None or attention.dim() == 3 else attention.expand(len(rows), -1, -1),
        drawn=None if noise is None else torch.tensor(noise, dtype=torch.float64),
    )


def chosen(selection: Selection) -> list[list[int]]:
    """Positions committed, row by row."""
    return [row.nonzero().flatten().tolist() for row in selection.commit]


def select(strategy: Strategy, seen: Observation, memory: object = None) -> list[list[int]]:
    return chosen(strategy.select(seen, memory))
