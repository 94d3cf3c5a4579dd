"""Dream's own sampler, one step at a time."""

import pytest

from dapd import DapdError, DreamSchedule
from strategies.hand_made import observe, progress, select


def test_the_first_step_may_commit_nothing_and_the_last_takes_all():
    strategy = DreamSchedule(steps=8)
    assert select(strategy, observe([0.5] * 8, at=progress(step=0))) == [[]]
    assert select(strategy, observe([0.5] * 3, at=progress(step=7, remaining=3))) == [[0, 1, 2]]
    assert select(strategy, observe([0.5] * 3, at=progress(step=9, remaining=3))) == [[0, 1, 2]]


def test_the_share_is_of_what_is_masked_now():
    """t falls from 1 to 1/4, nearly: three quarters of the rest go at step 3 of 4, with eps out of the way."""
    strategy = DreamSchedule(steps=4, eps=1e-9)
    counts = [len(select(strategy, observe([0.5] * 8, at=progress(step=step)))[0]) for step in range(4)]
    assert counts == [2, 2, 4, 8]


def test_without_steps_there_are_as_many_as_masks():
    at = progress(total=4, remaining=2, step=3)
    assert select(DreamSchedule(), observe([0.5, 0.5], at=at)) == [[0, 1]]


def test_steps_are_shared_by_the_blocks():
    at = progress(total=16, block_total=8, n_blocks=2, step=3)
    assert select(DreamSchedule(steps=8), observe([0.5, 0.5], at=at)) == [[0, 1]]


@pytest.mark.parametrize(("order", "wanted"), [("confidence", [1, 2]), ("entropy", [1, 2]), ("margin", [1, 2])])
def test_the_surest_go_first(order, wanted):
    assert select(DreamSchedule(steps=2, order=order), observe([0.3, 0.9, 0.6, 0.4])) == [[1]]
    assert select(DreamSchedule(steps=2, order=order, eps=1e-9), observe([0.3, 0.9, 0.6, 0.4])) == [wanted]


def test_origin_takes_each_position_with_the_share_as_its_chance():
    seen = observe([0.3, 0.9, 0.6, 0.4], noise=[[0.1, 0.9, 0.49, 0.51]])
    assert select(DreamSchedule(steps=2, order="random"), seen) == [[0, 2]]
    last = observe([0.3, 0.9], noise=[[0.1, 0.9999]], at=progress(step=1))
    assert select(DreamSchedule(steps=2, order="random"), last) == [[0, 1]]


def test_drawn_positions_follow_score_and_noise():
    strategy = DreamSchedule(steps=2, eps=1e-9, order="confidence", alg_temp=0.1)
    assert strategy.needs.draws
    assert select(strategy, observe([0.9, 0.1, 0.1, 0.8], noise=[[0.5] * 4])) == [[0, 3]]
    assert select(strategy, observe([0.5, 0.5, 0.5, 0.5], noise=[[0.1, 0.8, 0.9, 0.2]])) == [[1, 2]]


def test_it_may_idle_for_as_long_as_its_schedule():
    assert DreamSchedule(steps=12).needs.max_idle == 12
    assert DreamSchedule().needs.max_idle >= 4096


@pytest.mark.parametrize("fields", [{"steps": 0}, {"order": "none"}, {"eps": 0.0}, {"alg_temp": -1.0}])
def test_bad_fields(fields):
    with pytest.raises(DapdError, match=next(iter(fields))):
        DreamSchedule(**fields)
