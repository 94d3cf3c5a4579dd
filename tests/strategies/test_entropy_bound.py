"""EB-Sampler: the prefix whose entropies, the greatest aside, stay within gamma."""

import pytest
import torch

from dapd import DapdError, EntropyBound
from dapd.strategies.base import entropy
from strategies.hand_made import logits_of, logs, observe, select

CONFIDENCE = [0.999, 0.6, 0.99, 0.9]
H = entropy(logits_of(CONFIDENCE)).tolist()


def test_entropy_is_in_nats_and_of_the_whole_distribution():
    torch.testing.assert_close(entropy(torch.zeros(1, 8, dtype=torch.float64)), torch.tensor([8.0]).double().log())
    assert entropy(logs([[1.0, 0.0, 0.0]])).tolist() == [0.0]


def test_with_no_room_one_position_goes_or_all_that_are_certain():
    assert select(EntropyBound(0.0), observe(CONFIDENCE)) == [[0]]
    assert select(EntropyBound(0.0), observe([1.0, 1.0, 0.5])) == [[0, 1, 2]]


def test_the_greatest_entropy_is_free():
    """In order 0, 2, 3, 1: the first n may go when the first n - 1 fit, for here the last is the greatest."""
    assert select(EntropyBound(H[0]), observe(CONFIDENCE)) == [[0, 2]]
    assert select(EntropyBound(H[0] + H[2] + 1e-9), observe(CONFIDENCE)) == [[0, 2, 3]]
    assert select(EntropyBound(H[0] + H[2] + H[3] + 1e-9), observe(CONFIDENCE)) == [[0, 1, 2, 3]]


def test_by_confidence_the_greatest_entropy_may_stand_in_the_middle():
    logits = logs([[0.7, 0.3, 0, 0, 0], [0.65, 0.0875, 0.0875, 0.0875, 0.0875], [0.6, 0.4, 0, 0, 0]])[None]
    h = entropy(logits)[0].tolist()
    assert h[1] > h[2] > h[0]
    seen = observe([0.7, 0.65, 0.6], logits=logits)
    assert select(EntropyBound(h[0] + h[2] - 1e-6), seen) == [[0, 1]]
    assert select(EntropyBound(h[0] + h[2] + 1e-6), seen) == [[0, 1, 2]]
    assert select(EntropyBound(h[0] + 1e-6, order="entropy"), seen) == [[0, 2]]


def test_only_what_is_masked():
    seen = observe(CONFIDENCE, CONFIDENCE, masked=[[False, True, False, True], [False] * 4])
    assert select(EntropyBound(0.0), seen) == [[3], []]
    assert select(EntropyBound(9.0), seen) == [[1, 3], []]


@pytest.mark.parametrize("fields", [{"gamma": -0.1}, {"order": "random"}])
def test_bad_fields(fields):
    with pytest.raises(DapdError, match=next(iter(fields))):
        EntropyBound(**fields)
