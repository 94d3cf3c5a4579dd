"""LocalLeap: near an anchor a lower confidence suffices."""

import pytest

from dapd import DapdError
from dapd.strategies import LocalLeap
from strategies.hand_made import observe, select


def test_near_an_anchor_the_relaxed_threshold_holds():
    confidence = [0.8, 0.75, 0.74, 0.9, 0.8, 0.8, 0.8]
    assert select(LocalLeap(radius=2), observe(confidence)) == [[1, 3, 4, 5]]
    assert select(LocalLeap(radius=0), observe(confidence)) == [[3]]
    assert select(LocalLeap(radius=9), observe(confidence)) == [[0, 1, 3, 4, 5, 6]]


def test_what_leaps_is_no_anchor_itself():
    assert select(LocalLeap(radius=1), observe([0.95, 0.8, 0.8])) == [[0, 1]]


def test_without_an_anchor_the_best_one_goes():
    assert select(LocalLeap(), observe([0.8, 0.85, 0.1])) == [[1]]


def test_an_anchor_is_a_masked_position():
    assert select(LocalLeap(), observe([0.95, 0.8, 0.7], masked=[[False, True, True]])) == [[1]]


@pytest.mark.parametrize("fields", [{"threshold": 1.1}, {"relaxed": 0.95}, {"radius": -1}])
def test_bad_fields(fields):
    with pytest.raises(DapdError, match=next(iter(fields))):
        LocalLeap(**fields)
