"""From single results to a table: means with bootstrap intervals, Pareto fronts, accuracy under parallelism."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from dapd.evaluation.compare import Result


@dataclass(frozen=True)
class Row:
    """One decoder on one task."""

    task: str
    family: str
    decoder: str
    prompts: int
    score: float
    """Mean score, in percent."""
    low: float
    high: float
    """95% bootstrap interval of the score."""
    nfe: float
    tokens_per_forward: float
    seconds: float
    """Per prompt, in the batch it was decoded in."""


def summarise(results: Sequence[Result]) -> list[Row]:
    """One row per task and decoder, in the order in which they appear."""
    groups: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        groups[result.task, result.decoder].append(result)
    return [_row(group) for group in groups.values()]


def _row(group: list[Result]) -> Row:
    n = len(group)
    scores = torch.tensor([r.score for r in group], dtype=torch.float64) * 100
    low, high = interval(scores)
    nfe = sum(r.nfe for r in group) / n
    return Row(
        task=group[0].task,
        family=group[0].family,
        decoder=group[0].decoder,
        prompts=n,
        score=float(scores.mean()),
        low=low,
        high=high,
        nfe=nfe,
        tokens_per_forward=sum(r.tokens for r in group) / max(1, sum(r.nfe for r in group)),
        seconds=sum(r.seconds for r in group) / n,
    )


def interval(scores: torch.Tensor, draws: int = 1000, seed: int = 0) -> tuple[float, float]:
    """95% interval of the mean by resampling the prompts."""
    generator = torch.Generator().manual_seed(seed)
    picks = torch.randint(len(scores), (draws, len(scores)), generator=generator)
    low, high = torch.quantile(scores[picks].mean(-1), torch.tensor([0.025, 0.975], dtype=scores.dtype)).tolist()
    return low, high


def pareto(rows: Sequence[Row]) -> list[Row]:
    """The rows that no other beats: every other one needs more passes or scores less. By rising passes."""
    best: list[Row] = []
    for row in sorted(rows, key=lambda r: (r.nfe, -r.score)):
        if not best or row.score > best[-1].score:
            best.append(row)
    return best


def parallelism(rows: Sequence[Row], best_score: float) -> float | None:
    """AUP: the area under accuracy against tokens per forward, falls below the best score weighing ever less.

    Trapezoids of acc * min(exp(-3 (1 - acc / best)), 1) between points by rising tokens per forward; points more than
    five points below the first are left out. None where fewer than two points are left.
    """
    points = sorted((row.tokens_per_forward, row.score) for row in rows)
    points = [p for p in points if p[1] >= points[0][1] - 5]
    if len(points) < 2 or best_score <= 0:
        return None
    weighted = [(x, y * min(math.exp(-3 * (1 - y / best_score)), 1.0)) for x, y in points]
    return sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(weighted))


def fewest_at(rows: Sequence[Row], score: float) -> Row | None:
    """The row with the fewest passes among those that reach a score."""
    return min((row for row in rows if row.score >= score), key=lambda row: row.nfe, default=None)
