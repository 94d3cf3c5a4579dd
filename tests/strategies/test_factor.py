"""Fast-dLLM's factor rule, its quirk at the last rank included."""

import pytest

from dapd import DapdError, Factor
from strategies.hand_made import observe, select


def test_ranks_before_the_first_that_fails():
    """f = 1: rank 2 needs 1 - 1/3, rank 3 needs 1 - 1/4, rank 4 needs 1 - 1/5."""
    assert select(Factor(1.0), observe([0.1, 0.7, 0.9, 0.2])) == [[1, 2]]
    assert select(Factor(1.0), observe([0.1, 0.6, 0.9, 0.2])) == [[2]]
    assert select(Factor(1.0), observe([0.1, 0.8, 0.9, 0.85, 0.3])) == [[1, 2, 3]]


def test_the_limit_itself_passes():
    assert select(Factor(1.0), observe([1 - 1 / 3, 0.9, 0.1, 0.1])) == [[0, 1]]


def test_the_first_rank_always_passes():
    assert select(Factor(0.0), observe([0.1, 0.2, 0.3])) == [[2]]


def test_a_later_rank_that_would_pass_does_not_count():
    """The walk stops at the first failure: with f = 3.1 the limits are 1, -0.03 .. 0.225, 0.38, 0.48."""
    assert select(Factor(3.1), observe([0.2, 0.2, 0.1, 0.1, 0.1])) == [[0, 1]]


def test_a_failing_last_rank_is_taken():
    assert select(Factor(1.0), observe([0.9, 0.1])) == [[0, 1]]
    assert select(Factor(1.0), observe([0.9, 0.8, 0.1])) == [[0, 1, 2]]
    assert select(Factor(1.0), observe([0.01])) == [[0]]


def test_no_failure_takes_all():
    assert select(Factor(1.0), observe([0.99] * 6)) == [[0, 1, 2, 3, 4, 5]]


def test_the_last_rank_is_the_last_of_the_masked():
    seen = observe([0.9, 0.9, 0.1, 0.2], [0.9, 0.1, 0.1, 0.1], masked=[[True, False, True, False], [False] * 4])
    assert select(Factor(1.0), seen) == [[0, 2], []]


def test_bad_fields():
    with pytest.raises(DapdError, match="factor is -1"):
        Factor(-1)
