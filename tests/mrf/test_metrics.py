import itertools
import math

import pytest
import torch

from dapd.graph import edge_scores
from dapd.mrf.data import LENGTH, true_graph
from dapd.mrf.metrics import auc, average, layer_mean, measure_steps, order_violations, selected_layers
from dapd.mrf.paths import sample_paths

EDGE = true_graph()


def slow_auc(scores, nodes) -> float:
    pairs = list(itertools.combinations([i for i in range(LENGTH) if nodes[i]], 2))
    yes = [float(scores[p]) for p in pairs if EDGE[p]]
    no = [float(scores[p]) for p in pairs if not EDGE[p]]
    if not yes or not no:
        return math.nan
    return sum((a > b) + 0.5 * (a == b) for a in yes for b in no) / (len(yes) * len(no))


def slow_ovr(scores, nodes) -> float:
    kept = [i for i in range(LENGTH) if nodes[i]]
    true = {i: sum(bool(EDGE[i, j]) for j in kept) for i in kept}
    proxy = {i: sum(float(scores[i, j]) for j in kept if j != i) for i in kept}
    wrong = sum(true[i] < true[j] and proxy[i] > proxy[j] for i in kept for j in kept)
    return wrong / (len(kept) * (len(kept) - 1) / 2)


def random_states(n: int = 60):
    generator = torch.Generator().manual_seed(2)
    # One decimal: ties must occur.
    attention = (torch.rand(n, LENGTH, LENGTH, generator=generator) * 10).round() / 10
    size = torch.randint(3, LENGTH + 1, (n, 1), generator=generator)
    nodes = torch.rand(n, LENGTH, generator=generator).argsort(-1).argsort(-1) < size
    return edge_scores(attention, nodes), nodes


def test_auc_and_ovr_agree_with_slow_ones():
    scores, nodes = random_states()
    upper = torch.ones_like(EDGE).triu(1)
    found = auc(scores, EDGE, nodes.unsqueeze(-1) & nodes.unsqueeze(-2) & upper)
    expected = torch.tensor([slow_auc(s, n) for s, n in zip(scores, nodes, strict=True)])
    torch.testing.assert_close(found, expected, equal_nan=True)
    assert expected.isnan().any()
    found = order_violations(scores.double(), EDGE, nodes)
    expected = torch.tensor([slow_ovr(s.double(), n) for s, n in zip(scores, nodes, strict=True)])
    torch.testing.assert_close(found.float(), expected)


def test_the_true_graph_itself_is_perfect_and_its_complement_is_not():
    everything = torch.ones(1, LENGTH, dtype=torch.bool)
    perfect = EDGE.float().expand(1, 1, 1, LENGTH, LENGTH)
    (row,) = measure_steps(perfect + 0.01, everything.view(1, 1, LENGTH))
    assert row.auc.mean == 1
    assert row.ovr.mean == 0
    assert row.ratio.mean == pytest.approx(101)
    (row,) = measure_steps(1 - perfect, everything.view(1, 1, LENGTH))
    assert row.auc.mean == 0
    # X2..X4 against the six others: all 18 pairs of different degree are reversed, out of 36.
    assert row.ovr.mean == pytest.approx(0.5)


def test_ratio_is_of_pooled_means(stack):
    paths = sample_paths(stack, n_paths=6, seed=3)
    attention = layer_mean(paths, "last 2")
    rows = measure_steps(attention, paths.masked)
    for step in (0, 4, 6):
        yes, no = [], []
        for m, path in itertools.product(range(3), range(6)):
            a, nodes = attention[m, step, path], paths.masked[step, path]
            for i, j in itertools.combinations([i for i in range(LENGTH) if nodes[i]], 2):
                (yes if EDGE[i, j] else no).append(float(a[i, j] + a[j, i]) / 2)
        assert rows[step].ratio.mean == pytest.approx(sum(yes) / len(yes) / (sum(no) / len(no)), rel=1e-4)


def test_spread_over_paths_is_nothing_at_the_first_step(stack):
    paths = sample_paths(stack, n_paths=6, seed=3)
    rows = measure_steps(layer_mean(paths, "all"), paths.masked)
    assert rows[0].auc.over_paths == pytest.approx(0, abs=1e-6)
    assert rows[3].auc.over_paths > 0
    assert average(rows).auc.mean == pytest.approx(sum(r.auc.mean for r in rows) / 7)


def test_layer_selections():
    assert selected_layers("last 2", 8) == slice(6, 8)
    assert selected_layers("first 4", 8) == slice(0, 4)
    assert selected_layers("all", 8) == slice(0, 8)


def test_paths_unmask_one_node_per_step(stack):
    paths = sample_paths(stack, n_paths=8, seed=1)
    assert paths.masked.sum(-1).tolist() == [[9 - step] * 8 for step in range(7)]
    assert (paths.masked[1:] <= paths.masked[:-1]).all()
    assert (paths.sequences < 3).all()
    assert len({tuple(row) for row in paths.masked[3].tolist()}) > 1
    again = sample_paths(stack, n_paths=8, seed=1)
    assert torch.equal(paths.sequences, again.sequences)
