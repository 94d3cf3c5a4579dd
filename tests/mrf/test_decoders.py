import pytest
import torch

from dapd.mrf import storage
from dapd.mrf.adapter import ToyLM
from dapd.mrf.data import LENGTH, true_graph, valid
from dapd.mrf.decoders import QUICK, Contender, TrueGraph, contenders, decode_with, edges_within
from dapd.mrf.paths import sample_paths, sample_sequences
from dapd.mrf.study import head_aucs, pair_scores, study_heads
from dapd.strategies import TopK


@pytest.fixture(scope="module")
def shipped():
    torch.set_num_threads(1)
    return storage.load_run(storage.SHIPPED).network


def test_the_shipped_model_is_trained_and_small(shipped):
    assert sum(path.stat().st_size for path in storage.SHIPPED.iterdir()) < 1_000_000
    assert float(valid(sample_sequences(shipped, 1000, 1)).float().mean()) >= 0.99


def test_the_true_graph_by_degree_loses_nothing_in_a_third_of_the_passes(shipped):
    model = ToyLM(shipped)
    slow = decode_with(model, Contender("step by step", "", TopK(order="random")), 400)
    oracle = decode_with(model, Contender("true graph", "", TrueGraph()), 400)
    assert slow.forwards == LENGTH
    assert oracle.forwards <= 4
    assert oracle.ties == 0
    assert oracle.valid > slow.valid - 0.02


def test_everything_at_once_is_chance(shipped):
    found = decode_with(ToyLM(shipped), Contender("top-k", "", TopK(9)), 400)
    assert found.forwards == 1
    assert found.ties == 12
    assert found.valid < 0.05
    assert found.constraints == pytest.approx(1 / 3, abs=0.06)


def test_edges_within():
    chosen = torch.zeros(3, LENGTH, dtype=torch.bool)
    chosen[1, [0, 1, 5]] = True
    chosen[2] = True
    assert [edges_within(row, true_graph()) for row in chosen] == [0, 3, 12]


def test_names_of_contenders_are_unique_and_the_quick_ones_exist():
    names = [(c.family, c.setting) for c in contenders()]
    assert len(set(names)) == len(names)
    assert set(names) >= QUICK


def test_heads_against_the_plain_loop(stack):
    from dapd.mrf.metrics import auc

    paths = sample_paths(stack, 3)
    found = head_aucs(paths)
    edge = true_graph()
    upper = torch.ones_like(edge).triu(1)
    values = []
    for step in range(len(paths.masked)):
        nodes = paths.masked[step, 1]
        a = paths.attention[2, step, 1, 0, 1]
        values.append(auc((a + a.T) / 2, edge, nodes[:, None] & nodes[None] & upper))
    assert float(found[2, 1, 0, 1]) == pytest.approx(float(torch.stack(values).nanmean()), abs=1e-6)
    heads = study_heads(paths)
    assert heads.worst <= heads.median
    assert sum(heads.best_layers) == 3


def test_pair_scores_count_each_pair_once_or_in_both_directions(stack):
    paths = sample_paths(stack, 4)
    sizes = [sum(len(s) for s in pair_scores(paths, "all", row_max)) for row_max in (False, True)]
    n = paths.masked.sum(-1)
    assert sizes[0] == 3 * int((n * (n - 1) // 2).sum())
    assert sizes[1] == 2 * sizes[0]


def test_pooling_one_model_changes_nothing_and_pooling_copies_neither(stack):
    from dapd.mrf.evaluate import measure_selection
    from dapd.mrf.paths import Paths
    from dapd.mrf.study import auc_by_model, pool_models

    paths = sample_paths(stack.pick(slice(0, 1)), 6)
    alone = measure_selection(paths, "last 2").overall
    assert pool_models(paths, "last 2").overall == alone
    twice = Paths(paths.masked, paths.attention.repeat(2, 1, 1, 1, 1, 1, 1), paths.sequences)
    assert pool_models(twice, "last 2").overall.ovr.mean == pytest.approx(alone.ovr.mean)
    both = auc_by_model(twice, "last 2")
    assert both[0] == both[1]
