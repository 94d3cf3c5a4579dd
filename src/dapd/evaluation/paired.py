"""Two decoders on the same prompts: what one gains over the other, and whether chance would do as much.

Prompts differ far more than decoders do, so that two intervals of means may overlap although one decoder is better on
nearly every prompt. A paired test looks at each prompt's difference alone.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from dapd.errors import unknown
from dapd.evaluation.compare import Result

RESAMPLES = 4000


@dataclass(frozen=True)
class Difference:
    """One decoder compared with another one on the same prompts of one task."""

    task: str
    decoder: str
    against: str
    prompts: int
    gain: float
    """Difference of the mean scores, in points of a percent."""
    low: float
    high: float
    """95% interval of the gain, by resampling prompts."""
    better: int
    """Prompts on which the decoder scores higher."""
    worse: int
    p: float
    """The p-value of McNemar's exact test: how often chance alone splits the prompts on which the two decoders score
    differently at least as unevenly."""


def differences(results: Sequence[Result], against: str) -> list[Difference]:
    """Every decoder compared with `against`, task by task, on the prompts that both have decoded."""
    labels = list(dict.fromkeys(result.decoder for result in results))
    if against not in labels:
        raise unknown("decoder", against, labels)
    scores: dict[tuple[str, str], dict[int, float]] = {}
    for result in results:
        scores.setdefault((result.task, result.decoder), {})[result.example] = result.score
    return [
        _difference(task, decoder, against, theirs, scores[task, against])
        for (task, decoder), theirs in scores.items()
        if decoder != against and (task, against) in scores
    ]


def _difference(task: str, decoder: str, against: str, ours: dict[int, float], theirs: dict[int, float]) -> Difference:
    gains = [ours[example] - theirs[example] for example in sorted(ours.keys() & theirs.keys())]
    better = sum(gain > 0 for gain in gains)
    worse = sum(gain < 0 for gain in gains)
    low, high = _resampled(gains)
    mean = sum(gains) / len(gains)
    return Difference(
        task, decoder, against, len(gains), 100 * mean, 100 * low, 100 * high, better, worse, mcnemar(better, worse)
    )


def _resampled(gains: Sequence[float]) -> tuple[float, float]:
    """The middle 95% of the mean gain over samples of prompts, drawn with replacement; the same every time."""
    rng = random.Random(0)
    n = len(gains)
    means = sorted(sum(rng.choices(gains, k=n)) / n for _ in range(RESAMPLES))
    return means[round(0.025 * (RESAMPLES - 1))], means[round(0.975 * (RESAMPLES - 1))]


def mcnemar(better: int, worse: int) -> float:
    """The two-sided exact p-value: prompts that differ fall to either side like a fair coin."""
    n = better + worse
    tail = sum(math.comb(n, k) for k in range(min(better, worse) + 1))
    return min(1.0, 2.0 * tail / 2.0**n)
