"""Several models on the same prompts: what is counted, and how wide the intervals are."""

import random

import pytest

from dapd.evaluation.compare import Result
from dapd.evaluation.seeds import Cell, cells, passes_ratio


def results(scores: list[float], decoder: str = "a", passes: int = 10) -> list[Result]:
    return [Result(decoder, decoder, "latin", i, score, passes + i, 20, 0.5) for i, score in enumerate(scores)]


def cell(*models: list[float], passes: int = 10) -> Cell:
    (one,) = cells([results(scores, passes=passes) for scores in models])
    return one


def test_means_are_over_models_and_prompts() -> None:
    row = cell([1.0, 0.0], [1.0, 1.0]).row()
    assert (row.task, row.family, row.decoder, row.prompts) == ("latin", "a", "a", 2)
    assert row.score == pytest.approx(75.0)
    assert row.nfe == pytest.approx(10.5)
    assert row.tokens_per_forward == pytest.approx(80 / 42)
    assert row.seconds == pytest.approx(0.5)


def test_a_decoder_that_was_stopped_is_left_out() -> None:
    whole = results([1.0, 0.0, 1.0])
    stopped = results([1.0, 0.0, 1.0], "b")
    assert [one.decoder for one in cells([whole + stopped, whole + stopped[:2]])] == ["a"]
    assert [one.decoder for one in cells([whole + stopped, whole])] == ["a"]
    assert [one.decoder for one in cells([whole + stopped, whole + stopped])] == ["a", "b"]


def test_results_may_come_in_any_order() -> None:
    ordered = results([1.0, 0.0, 1.0, 0.5])
    mixed = random.Random(0).sample(ordered, 4)
    assert cells([mixed])[0].score.tolist() == cells([ordered])[0].score.tolist()


def test_the_interval_of_a_share_is_the_usual_one() -> None:
    row = cell([1.0, 0.0] * 200).row()
    assert row.low == pytest.approx(50 - 4.9, abs=0.7)
    assert row.high == pytest.approx(50 + 4.9, abs=0.7)


def test_models_that_differ_widen_it() -> None:
    alike = cell(*[[1.0, 1.0, 1.0, 0.0] * 50] * 2).row()
    unlike = cell([1.0] * 200, [1.0, 0.0] * 100).row()
    assert alike.score == unlike.score
    assert unlike.high - unlike.low > 2 * (alike.high - alike.low)


def test_the_ratio_of_passes_is_resampled_in_pairs() -> None:
    """Long prompts are long for both: their ratio is known better than either mean."""
    many, few = cell([1.0] * 30, passes=10), cell([1.0] * 30, passes=10)
    same = passes_ratio(many, few)
    assert (same.value, same.low, same.high) == (1.0, 1.0, 1.0)
    twice = passes_ratio(cell([1.0] * 30, passes=49), few)
    assert twice.value == pytest.approx((49 + 14.5) / 24.5)
    assert twice.low < twice.value < twice.high
