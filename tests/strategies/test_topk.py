"""LLaDA's own sampler, one step at a time."""

import pytest

from dapd import DapdError, TopK
from strategies.hand_made import logs, observe, progress, select


def test_one_position_a_step_the_surest():
    assert select(TopK(), observe([0.5, 0.9, 0.7])) == [[1]]


def test_k_positions_a_step():
    assert select(TopK(k=2), observe([0.5, 0.9, 0.7], [0.3, 0.2, 0.1])) == [[1, 2], [0, 1]]


def test_only_what_is_masked_and_no_more_than_there_is():
    seen = observe([0.5, 0.9, 0.7], masked=[[True, False, True]])
    assert select(TopK(), seen) == [[2]]
    assert select(TopK(k=9), seen) == [[0, 2]]


def test_a_finished_row_gets_nothing():
    seen = observe([0.5, 0.9], [0.5, 0.9], masked=[[False, False], [True, True]])
    assert select(TopK(k=2), seen) == [[], [0, 1]]


def test_the_lowest_position_first_among_equals():
    assert select(TopK(k=2), observe([0.4, 0.7, 0.7, 0.7])) == [[1, 2]]
    assert select(TopK(k=3), observe([0.0, 0.0, 0.0, 0.0])) == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("masks", "steps", "wanted"), [(10, 4, [3, 3, 2, 2]), (8, 8, [1] * 8), (7, 1, [7]), (9, 4, [3, 2, 2, 2])]
)
def test_the_remainder_of_the_quota_goes_to_the_earliest_steps(masks, steps, wanted):
    seen = [observe([0.5] * masks, at=progress(total=masks, step=step)) for step in range(steps)]
    assert [len(select(TopK(steps=steps), one)[0]) for one in seen] == wanted


def test_steps_are_shared_by_the_blocks():
    at = progress(total=16, block_total=8, n_blocks=2)
    assert len(select(TopK(steps=8), observe([0.5] * 8, at=at))[0]) == 2


def test_each_row_has_its_own_quota():
    at = progress(2)
    at.block_total[1] = 4
    assert [len(row) for row in select(TopK(steps=2), observe([0.5] * 4, [0.5] * 4, at=at))] == [4, 2]


def test_the_quota_is_never_empty():
    assert len(select(TopK(steps=20), observe([0.5] * 3, at=progress(total=3, step=15)))[0]) == 1


@pytest.mark.parametrize(("order", "wanted"), [("confidence", 2), ("margin", 0), ("entropy", 1)])
def test_orders(order, wanted):
    """Position 0 has the widest margin, 1 the lowest entropy, 2 the highest confidence."""
    logits = logs([[0.54, 0.02, 0.02, 0.21, 0.21], [0.56, 0.44, 0, 0, 0], [0.57, 0.25, 0.06, 0.06, 0.06]])
    seen = observe([0.54, 0.56, 0.57], logits=logits[None])
    assert select(TopK(order=order), seen) == [[wanted]]


def test_random_order_follows_the_draws():
    assert select(TopK(order="random", k=2), observe([0.9, 0.8, 0.1], noise=[[0.2, 0.5, 0.9]])) == [[1, 2]]
    assert TopK(order="random").needs.draws
    assert not TopK().needs.draws


@pytest.mark.parametrize(
    ("fields", "complaint"), [({"k": 0}, "k is 0"), ({"steps": 0}, "steps is 0"), ({"order": "worst"}, "confidence")]
)
def test_bad_fields(fields, complaint):
    with pytest.raises(DapdError, match=complaint):
        TopK(**fields)
