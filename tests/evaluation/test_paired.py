"""Paired tests: by hand on small numbers, and their behaviour under chance."""

from __future__ import annotations

import random

import pytest

from dapd.errors import DapdError
from dapd.evaluation.compare import Result
from dapd.evaluation.paired import differences, mcnemar


def results(decoder: str, scores: list[float], task: str = "t") -> list[Result]:
    return [Result(decoder, decoder, task, number, score, 1, 1, 0.0) for number, score in enumerate(scores)]


def test_mcnemar_by_hand() -> None:
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(3, 3) == 1.0
    assert mcnemar(5, 0) == pytest.approx(2 / 32)
    assert mcnemar(1, 7) == mcnemar(7, 1) == pytest.approx(2 * (1 + 8) / 256)


def test_a_gain_on_every_prompt_is_seen_where_the_means_overlap() -> None:
    base = [0.1 * (number % 10) for number in range(20)]
    [gain] = differences([*results("a", base), *results("b", [score + 0.05 for score in base])], "a")
    assert gain.gain == pytest.approx(5.0)
    assert gain.low == pytest.approx(5.0)
    assert (gain.better, gain.worse) == (20, 0)
    assert gain.p < 1e-5


def test_only_prompts_of_both_count_and_tasks_stay_apart() -> None:
    rows = [*results("a", [1, 0, 1]), *results("b", [1, 1]), *results("a", [0], "u"), *results("b", [1], "u")]
    first, second = differences(rows, "a")
    assert (first.task, first.prompts, first.better, first.worse) == ("t", 2, 1, 0)
    assert (second.task, second.prompts, second.gain) == ("u", 1, 100.0)


def test_chance_is_rarely_called_a_difference() -> None:
    rng = random.Random(1)
    low = 0
    for _ in range(200):
        a, b = ([float(rng.random() < 0.7) for _ in range(40)] for _ in range(2))
        [gain] = differences([*results("a", a), *results("b", b)], "a")
        low += gain.p < 0.05
    assert low <= 16, "an exact test errs in at most 5% of the cases"


def test_a_decoder_that_is_not_there() -> None:
    with pytest.raises(DapdError, match="unknown decoder"):
        differences(results("a", [1]), "b")
