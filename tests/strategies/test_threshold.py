"""Fast-dLLM's threshold, with and without Dream's budget."""

import pytest
import torch

from dapd import DapdError, Threshold
from strategies.hand_made import chosen, observe, select


def test_all_that_reach_the_threshold_itself_included():
    assert select(Threshold(0.9), observe([0.9, 0.899, 0.95, 0.1])) == [[0, 2]]


def test_always_the_best_one():
    assert select(Threshold(0.9), observe([0.2, 0.3, 0.3], [0.95, 0.1, 0.99])) == [[1], [0, 2]]


def test_only_what_is_masked():
    assert select(Threshold(0.5), observe([0.9, 0.9, 0.1], masked=[[False, True, True]])) == [[1]]
    assert select(Threshold(0.5), observe([0.9, 0.9, 0.1], masked=[[False, False, True]])) == [[2]]
    assert select(Threshold(0.0), observe([0.9, 0.9], masked=[[False, False]])) == [[]]


def test_a_budget_looks_at_the_best_few_only():
    assert select(Threshold(0.5, budget=2), observe([0.6, 0.9, 0.7, 0.8])) == [[1, 3]]
    assert select(Threshold(0.75, budget=3), observe([0.6, 0.9, 0.7, 0.8])) == [[1, 3]]


def test_what_was_refused_widens_the_next_look():
    first = Threshold(0.75, budget=3).select(observe([0.6, 0.9, 0.7, 0.8, 0.1]))
    assert first.memory.tolist() == [1]
    later = Threshold(0.5, budget=1).select(observe([0.6, 0.9, 0.7, 0.8]), torch.tensor([2]))
    assert chosen(later) == [[1, 2, 3]]
    assert later.memory.tolist() == [0]


def test_refusals_are_counted_among_the_masked_and_row_by_row():
    seen = observe([0.1, 0.2, 0.3], [0.1, 0.2, 0.3], masked=[[True, True, True], [False, False, True]])
    first = Threshold(0.9, budget=5).select(seen)
    assert chosen(first) == [[2], [2]]
    assert first.memory.tolist() == [2, 0]


@pytest.mark.parametrize("fields", [{"threshold": 1.1}, {"threshold": -0.1}, {"budget": 0}])
def test_bad_fields(fields):
    with pytest.raises(DapdError, match=next(iter(fields))):
        Threshold(**fields)
