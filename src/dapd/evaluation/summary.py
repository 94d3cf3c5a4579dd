"""From single results to a table: means with their intervals, Pareto fronts, accuracy under parallelism."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from dapd.evaluation.compare import Result
from dapd.io.table import Table

NORMAL_95 = 1.959964
"""Standard deviations on either side of the mean that hold 95% of a normal distribution."""


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
    """95% interval of the score."""
    nfe: float
    tokens_per_forward: float
    seconds: float
    """Mean time per prompt, in the batch in which it was decoded."""


def summarise(results: Sequence[Result]) -> list[Row]:
    """One row per task and decoder, in the order in which they appear."""
    groups: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        groups[result.task, result.decoder].append(result)
    return [_row(group) for group in groups.values()]


def _row(group: list[Result]) -> Row:
    n = len(group)
    score = sum(r.score for r in group) / n
    low, high = interval(score, n)
    nfe = sum(r.nfe for r in group) / n
    return Row(
        task=group[0].task,
        family=group[0].family,
        decoder=group[0].decoder,
        prompts=n,
        score=100 * score,
        low=100 * low,
        high=100 * high,
        nfe=nfe,
        tokens_per_forward=sum(r.tokens for r in group) / max(1, sum(r.nfe for r in group)),
        seconds=sum(r.seconds for r in group) / n,
    )


def interval(mean: float, n: int) -> tuple[float, float]:
    """95% interval of a share that was measured on n prompts, by Wilson's formula.

    It is as wide as it should be for shares near 0 and 1, where resampling gives an interval without width: one right
    answer of one says little. Scores between 0 and 1 vary at most as much as shares of the same mean, so for them it is
    never too narrow.
    """
    spread = NORMAL_95**2 / n
    middle = (mean + spread / 2) / (1 + spread)
    half = math.sqrt(spread * mean * (1 - mean) + spread**2 / 4) / (1 + spread)
    return max(0.0, min(mean, middle - half)), min(1.0, max(mean, middle + half))


def pareto(rows: Sequence[Row]) -> list[Row]:
    """The rows that no other row beats, by rising number of passes; rows that are equal are all kept."""
    return sorted((row for row in rows if not any(_beats(other, row) for other in rows)), key=lambda row: row.nfe)


def _beats(one: Row, other: Row) -> bool:
    """Whether one is as good in both respects and better in one of them."""
    as_good = one.nfe <= other.nfe and one.score >= other.score
    return as_good and (one.nfe, one.score) != (other.nfe, other.score)


def parallelism(rows: Sequence[Row], best_score: float) -> float:
    """AUP, the area under accuracy against tokens per forward, as d3LLM measures it.

    Up to the first point (the fewest tokens per forward) it is a rectangle, from there on trapezoids of
    acc * min(exp(-3 (1 - acc / best)), 1): the further a score falls below the best, the less it weighs. Points whose
    accuracy is more than five percentage points below that of the first are left out.
    """
    points = sorted((row.tokens_per_forward, row.score) for row in rows)
    points = [p for p in points if p[1] >= points[0][1] - 5]
    if best_score <= 0:
        return 0.0
    weighted = [(x, y * min(math.exp(-3 * (1 - y / best_score)), 1.0)) for x, y in points]
    return points[0][0] * points[0][1] + sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(weighted))


def areas(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Accuracy under parallelism of each family on each task."""
    out: dict[str, dict[str, float]] = {}
    for task in dict.fromkeys(row.task for row in rows):
        here = [row for row in rows if row.task == task]
        best = max(row.score for row in here)
        families = dict.fromkeys(row.family for row in here)
        out[task] = {f: parallelism([row for row in here if row.family == f], best) for f in families}
    return out


def as_table(rows: Sequence[Row]) -> Table:
    """A row per task and decoder; a star in the column `front` marks those that no other of the task beats."""
    area = areas(rows)
    best = {task: pareto([row for row in rows if row.task == task]) for task in area}
    cells = [
        (
            row.task,
            row.decoder,
            "*" if row in best[row.task] else "",
            str(row.prompts),
            f"{row.score:.1f}",
            f"{row.low:.1f}-{row.high:.1f}",
            f"{row.nfe:.1f}",
            f"{row.tokens_per_forward:.2f}",
            f"{row.seconds:.2f}",
            f"{area[row.task][row.family]:.0f}",
        )
        for row in rows
    ]
    head = ("task", "decoder", "front", "prompts", "score %", "95%", "passes", "per pass", "seconds", "AUP")
    return Table(head, cells, words=3)
