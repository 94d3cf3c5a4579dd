"""Edge scores, normalisers, edges, ranks by hand; the greedy set by rounds against the obvious scan."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dapd.graph import (
    LARGE,
    by_rounds,
    by_scan,
    degrees,
    edge_scores,
    edges_above,
    independent_set,
    normalise,
    normalised_edges,
    ranks,
)


def scan(blocks, priority, nodes):
    """The greedy set of one graph, one node at a time, in plain Python."""
    order = sorted((i for i, is_node in enumerate(nodes) if is_node), key=lambda i: (-priority[i], i))
    taken = []
    for i in order:
        if not any(blocks[i][j] for j in taken):
            taken.append(i)
    return [i in taken for i in range(len(nodes))]


def graphs(count, n, generator, *, density, levels, symmetric, node_share):
    """A batch of graphs; few `levels` of priority make ties."""
    blocks = torch.rand(count, n, n, generator=generator) < density
    if symmetric:
        blocks = blocks | blocks.mT
    priority = torch.randint(levels, (count, n), generator=generator) / levels
    nodes = torch.rand(count, n, generator=generator) < node_share
    return blocks, priority, nodes


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "directed"])
@pytest.mark.parametrize("levels", [1, 3, 10**6], ids=["all-equal", "ties", "distinct"])
@pytest.mark.parametrize("node_share", [0.6, 1.0])
def test_rounds_equal_the_scan(symmetric, levels, node_share):
    """More than 5,000 graphs over all cases, self-loops (which block nothing) included."""
    generator = torch.Generator().manual_seed(levels + symmetric)
    for n in (1, 2, 3, 5, 8, 13, 21, 34):
        for density in (0.0, 0.05, 0.3, 0.9, 1.0):
            batch = graphs(12, n, generator, density=density, levels=levels, symmetric=symmetric, node_share=node_share)
            want = [scan(*one) for one in zip(*(part.tolist() for part in batch), strict=True)]
            assert independent_set(*batch).tolist() == want


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_rounds_equal_the_scan_on_any_graph(data):
    n = data.draw(st.integers(1, 7))
    flags = st.lists(st.booleans(), min_size=n, max_size=n)
    blocks = data.draw(st.lists(flags, min_size=n, max_size=n))
    numbers = st.sampled_from([0.0, -0.0, 1.0, 0.5, -3.0, 1e-30, float("inf"), float("-inf")])
    priority = data.draw(st.lists(numbers, min_size=n, max_size=n))
    nodes = data.draw(flags)
    got = independent_set(torch.tensor(blocks), torch.tensor(priority), torch.tensor(nodes))
    assert got.tolist() == scan(blocks, priority, nodes)


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "directed"])
@pytest.mark.parametrize("levels", [1, 3, 10**6], ids=["all-equal", "ties", "distinct"])
def test_the_scan_of_a_cpu_equals_the_rounds(symmetric, levels):
    generator = torch.Generator().manual_seed(levels + symmetric)
    for n in (1, 2, 9, 33, 130):
        for density in (0.0, 0.02, 0.3, 1.0):
            batch = graphs(6, n, generator, density=density, levels=levels, symmetric=symmetric, node_share=0.7)
            assert torch.equal(by_scan(*batch), by_rounds(*batch))
    n = LARGE + 8  # from here on it is the way that is taken
    blocks, priority, nodes = graphs(2, n, generator, density=0.01, levels=levels, symmetric=symmetric, node_share=0.7)
    want = by_rounds(blocks, priority, nodes)
    assert 10 < int(want[0].sum()) < n
    assert torch.equal(independent_set(blocks, priority, nodes), want)
    assert torch.equal(independent_set(blocks.mT.contiguous().mT, priority, nodes), want)  # rows that lie apart
    assert torch.equal(independent_set(blocks[1], priority[1], nodes[1]), want[1])


def test_large_graphs_are_made_of_the_same_numbers():
    """On a CPU n x n matrices are walked through in another way from `LARGE` on; not a bit may differ."""
    n = LARGE + 40
    generator = torch.Generator().manual_seed(0)
    attention = torch.rand(2, n, n, generator=generator) ** 4
    nodes = torch.rand(2, n, generator=generator) < 0.6
    before = attention.clone()
    scores = edge_scores(attention, nodes)
    pairs = nodes[..., None] & nodes[..., None, :] & ~torch.eye(n, dtype=torch.bool)
    assert torch.equal(scores, torch.where(pairs, attention + attention.mT, 0) / 2)
    assert torch.equal(edge_scores(attention[0], nodes[0]), scores[0])
    assert torch.equal(edge_scores(attention.mT, nodes), scores)
    tau = torch.tensor([0.1, 0.3])
    for norm in ("row_max", "none", "row_sum", "global_max"):
        for direction in ("candidate_row", "either", "both"):
            want = edges_above(normalise(scores, norm), tau, direction)
            assert torch.equal(normalised_edges(scores, norm, tau, direction), want)
            assert torch.equal(normalised_edges(scores[1], norm, tau[1], direction), want[1])
    assert torch.equal(attention, before)


def test_long_chains_take_many_rounds_and_end():
    """i is blocked by i - 1 alone: every other node of the chain."""
    n = 40
    blocks = torch.diag(torch.ones(n - 1, dtype=torch.bool), -1)
    taken = independent_set(blocks, torch.arange(n, 0, -1.0), torch.ones(n, dtype=torch.bool))
    assert taken.tolist() == [True, False] * 20


def test_only_the_candidates_row_counts():
    """1 is blocked by 0, but not the other way round."""
    blocks = torch.tensor([[False, False], [True, False]])
    nodes = torch.tensor([True, True])
    assert independent_set(blocks, torch.tensor([2.0, 1.0]), nodes).tolist() == [True, False]
    assert independent_set(blocks, torch.tensor([1.0, 2.0]), nodes).tolist() == [True, True]


@pytest.mark.parametrize("n", [4, 17, 40])
def test_symmetric_sets_are_independent_and_maximal(n):
    generator = torch.Generator().manual_seed(n)
    blocks, priority, nodes = graphs(60, n, generator, density=0.15, levels=5, symmetric=True, node_share=0.8)
    blocks = blocks & ~torch.eye(n, dtype=torch.bool)
    taken = independent_set(blocks, priority, nodes)
    touched = (blocks & taken[:, None, :]).any(-1)
    assert not (taken & touched).any()
    assert not (taken & ~nodes).any()
    assert (touched | taken)[nodes].all()


def test_batch_dimensions_and_the_single_graph():
    generator = torch.Generator().manual_seed(0)
    blocks, priority, nodes = graphs(6, 9, generator, density=0.3, levels=4, symmetric=False, node_share=0.7)
    want = independent_set(blocks, priority, nodes)
    deep = independent_set(blocks.view(2, 3, 9, 9), priority.view(2, 3, 9), nodes.view(2, 3, 9))
    assert torch.equal(deep.view(6, 9), want)
    assert torch.equal(independent_set(blocks[4], priority[4], nodes[4]), want[4])


def test_no_nodes_no_set():
    blocks, priority = torch.ones(2, 3, 3, dtype=torch.bool), torch.rand(2, 3)
    nodes = torch.tensor([[False, False, False], [False, True, False]])
    assert independent_set(blocks, priority, nodes).tolist() == nodes.tolist()
    none = torch.zeros(2, 0, dtype=torch.bool)
    assert independent_set(torch.zeros(2, 0, 0, dtype=torch.bool), torch.zeros(2, 0), none).shape == (2, 0)


def test_arguments_are_left_alone():
    generator = torch.Generator().manual_seed(1)
    batch = graphs(3, 8, generator, density=0.4, levels=3, symmetric=False, node_share=0.8)
    before = [part.clone() for part in batch]
    independent_set(*batch)
    assert all(torch.equal(a, b) for a, b in zip(batch, before, strict=True))


def test_ranks_are_stable_and_put_nodes_first():
    priority = torch.tensor([[0.5, 0.9, 0.5, 0.9, 1.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    nodes = torch.tensor([[True, True, True, True, False], [False, True, True, False, True]])
    assert ranks(priority, nodes).tolist() == [[2, 0, 3, 1, 4], [3, 0, 1, 4, 2]]


def test_ranks_of_infinitely_low_nodes():
    """They still come before what is not a node."""
    priority = torch.tensor([5.0, float("-inf"), 0.0])
    assert ranks(priority, torch.tensor([False, True, True])).tolist() == [2, 1, 0]


ATTENTION = torch.tensor(
    [
        [0.7, 0.2, 0.1, 0.4],
        [0.4, 0.5, 0.3, 0.2],
        [0.1, 0.1, 0.6, 0.0],
        [0.2, 0.2, 0.2, 0.4],
    ]
)
NODES = torch.tensor([True, True, True, False])
SCORES = torch.tensor([[0.0, 0.3, 0.1, 0.0], [0.3, 0.0, 0.2, 0.0], [0.1, 0.2, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])


def test_edge_scores_are_symmetric_and_between_nodes_alone():
    torch.testing.assert_close(edge_scores(ATTENTION, NODES), SCORES)
    batch = edge_scores(torch.stack((ATTENTION, ATTENTION)), torch.stack((NODES, ~NODES)))
    torch.testing.assert_close(batch, torch.stack((SCORES, torch.zeros(4, 4))))


def test_degrees_are_raw():
    torch.testing.assert_close(degrees(SCORES), torch.tensor([0.4, 0.5, 0.3, 0.0]))


@pytest.mark.parametrize(
    ("norm", "want"),
    [
        ("none", SCORES.tolist()),
        ("row_max", [[0, 1, 1 / 3, 0], [1, 0, 2 / 3, 0], [0.5, 1, 0, 0], [0, 0, 0, 0]]),
        ("row_sum", [[0, 0.75, 0.25, 0], [0.6, 0, 0.4, 0], [1 / 3, 2 / 3, 0, 0], [0, 0, 0, 0]]),
        ("global_max", [[0, 1, 1 / 3, 0], [1, 0, 2 / 3, 0], [1 / 3, 2 / 3, 0, 0], [0, 0, 0, 0]]),
    ],
)
def test_normalise(norm, want):
    torch.testing.assert_close(normalise(SCORES, norm), torch.tensor(want))
    twice = normalise(torch.stack((SCORES, SCORES / 7)), norm)
    torch.testing.assert_close(twice[0], torch.tensor(want))
    torch.testing.assert_close(twice[1], torch.tensor(want) / (7 if norm == "none" else 1))


@pytest.mark.parametrize("norm", ["row_max", "row_sum", "global_max"])
def test_normalise_never_divides_by_zero(norm):
    tiny = torch.full((2, 2), 1e-10)
    assert torch.equal(normalise(torch.zeros(1, 1), norm), torch.zeros(1, 1))
    torch.testing.assert_close(normalise(tiny, norm), torch.full((2, 2), 1e-2))


@pytest.mark.parametrize(
    ("tau", "direction", "want"),
    [
        (0.7, "candidate_row", {(0, 1), (1, 0), (2, 1)}),
        (0.7, "either", {(0, 1), (1, 0), (2, 1), (1, 2)}),
        (0.7, "both", {(0, 1), (1, 0)}),
        (0.4, "candidate_row", {(0, 1), (1, 0), (1, 2), (2, 1), (2, 0)}),
        (0.4, "either", {(0, 1), (1, 0), (1, 2), (2, 1), (2, 0), (0, 2)}),
        (0.4, "both", {(0, 1), (1, 0), (1, 2), (2, 1)}),
    ],
)
def test_conflicts(tau, direction, want):
    """Row-normalised scores of the pairs: 0-1 are 1 and 1, 0-2 are 1/3 and 1/2, 1-2 are 2/3 and 1."""
    found = edges_above(normalise(SCORES, "row_max"), torch.tensor(tau), direction)
    assert {tuple(pair) for pair in found.nonzero().tolist()} == want


def test_a_score_equal_to_tau_is_no_edge_and_tau_is_per_row():
    scores = torch.tensor([[[0.0, 0.25], [0.25, 0.0]]]).expand(2, 2, 2)
    found = edges_above(scores, torch.tensor([0.25, 0.125]))
    assert found.tolist() == [[[False, False], [False, False]], [[False, True], [True, False]]]
