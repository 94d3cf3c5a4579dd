"""Controls: DAPD's rule on graphs that are not the model's."""

import pytest
import torch

from dapd import Dapd, DapdError
from dapd.strategies import DistanceGraph, ShuffledGraph
from strategies.hand_made import observe, progress, select


def test_the_distance_graph_keeps_neighbours_apart():
    strategy = DistanceGraph(0.1, 0.1, shortcut="none", width=2)
    assert select(strategy, observe([0.9, 0.8, 0.7, 0.6, 0.5])) == [[1, 3]]
    assert select(strategy, observe([0.99, 0.2, 0.2, 0.2, 0.99])) == [[0, 2, 4]]
    assert strategy.needs.attention is None


def test_a_distance_of_one_is_no_graph_at_all():
    assert select(DistanceGraph(shortcut="none", width=1), observe([0.1, 0.2, 0.3])) == [[0, 1, 2]]


def test_the_shuffled_graph_is_the_models_with_other_nodes():
    """0-1 is the only edge. The draws put 2 first, then 0, then 1: now it is 0 (for 2) that is free."""
    attention = torch.tensor([[0.0, 0.5, 0.0], [0.5, 0.0, 0.0], [0.0, 0.0, 0.0]])
    confidence = [0.5, 0.6, 0.7]
    assert select(Dapd(0.1, 0.1, shortcut="none"), observe(confidence, attention=attention)) == [[1, 2]]
    shuffled = ShuffledGraph(0.1, 0.1, shortcut="none")
    assert shuffled.needs.draws
    seen = observe(confidence, attention=attention, noise=[[0.5, 0.2, 0.9]])
    assert select(shuffled, seen) == [[0, 2]]
    assert int(shuffled.scores(seen).count_nonzero()) == 2


def test_shuffling_stays_among_the_masked():
    attention = torch.rand(2, 6, 6, generator=torch.Generator().manual_seed(0))
    masked = [[True, False, True, True, False, True], [False, True, True, False, False, True]]
    seen = observe(
        [0.5] * 6,
        [0.5] * 6,
        attention=attention,
        masked=masked,
        noise=torch.rand(2, 6, generator=torch.Generator().manual_seed(1)).tolist(),
        at=progress(2),
    )
    own, other = Dapd().scores(seen), ShuffledGraph().scores(seen)
    for row in range(2):
        assert sorted(own[row].flatten().tolist()) == pytest.approx(sorted(other[row].flatten().tolist()))
        assert not bool(other[row][~seen.masked[row]].any())
        torch.testing.assert_close(other[row], other[row].T)
    assert not torch.equal(own, other)


@pytest.mark.parametrize(("fields", "complaint"), [({"width": 0}, "width"), ({"tau_max": 1.0}, "tau_max")])
def test_bad_fields(fields, complaint):
    with pytest.raises(DapdError, match=complaint):
        DistanceGraph(**fields)
