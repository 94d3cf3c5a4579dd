"""The independent set as a kernel: equal to the rounds in torch and to the obvious scan."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dapd import graph, kernels
from dapd.kernels import selection

INF, NAN = float("inf"), float("nan")


def scan(blocks, priority, nodes):
    """The greedy set of one graph, one node at a time; nan comes first, as in a sort."""

    def place(i):
        p = priority[i]
        return (0, 0.0, i) if p != p else (1, -max(p, torch.finfo(torch.float32).min), i)

    taken = []
    for i in sorted((i for i, is_node in enumerate(nodes) if is_node), key=place):
        if not any(blocks[i][j] for j in taken):
            taken.append(i)
    return [i in taken for i in range(len(nodes))]


def in_torch(*args):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "usable", lambda tensor: False)
        return graph.independent_set(*args)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_equal_to_the_scan_on_any_graph(data):
    n, batch = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 3))
    flags = st.lists(st.booleans(), min_size=n, max_size=n)
    blocks = data.draw(st.lists(st.lists(flags, min_size=n, max_size=n), min_size=batch, max_size=batch))
    numbers = st.sampled_from([0.0, -0.0, 1.0, 0.5, -3.0, 1e-30, -3.4e38, INF, -INF, NAN])
    priority = data.draw(st.lists(st.lists(numbers, min_size=n, max_size=n), min_size=batch, max_size=batch))
    nodes = data.draw(st.lists(flags, min_size=batch, max_size=batch))
    args = torch.tensor(blocks), torch.tensor(priority), torch.tensor(nodes)
    got = graph.independent_set(*args)
    assert got.tolist() == [scan(*one) for one in zip(blocks, priority, nodes, strict=True)]
    assert torch.equal(got, in_torch(*args))


@pytest.mark.parametrize("n", [1, 31, 32, 33, 100, 257])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_equal_to_the_rounds_in_torch(n, dtype):
    generator = torch.Generator().manual_seed(n)
    for density in (0.0, 0.02, 0.3, 1.0):
        blocks = torch.rand(2, n, n, generator=generator) < density
        priority = (torch.randint(9, (2, n), generator=generator) / 9).to(dtype)
        nodes = torch.rand(2, n, generator=generator) < 0.7
        nodes[0] = False
        assert torch.equal(selection.independent_set(blocks, priority, nodes), in_torch(blocks, priority, nodes))


def test_tiles_of_words(monkeypatch):
    """As with many nodes, where a program does not hold all of the relation at once."""
    monkeypatch.setattr(selection, "TILE_WORDS", 256)
    generator = torch.Generator().manual_seed(0)
    blocks = torch.rand(2, 200, 200, generator=generator) < 0.05
    priority, nodes = torch.rand(2, 200, generator=generator), torch.rand(2, 200, generator=generator) < 0.9
    assert torch.equal(selection.independent_set(blocks, priority, nodes), in_torch(blocks, priority, nodes))


def test_long_chains_of_blockers_end():
    n = 70
    blocks = torch.diag(torch.ones(n - 1, dtype=torch.bool), -1)
    taken = graph.independent_set(blocks, torch.arange(n, 0, -1.0), torch.ones(n, dtype=torch.bool))
    assert taken.tolist() == [True, False] * 35


def test_any_batch_dimensions_and_strides():
    generator = torch.Generator().manual_seed(1)
    blocks = (torch.rand(2, 3, 9, 9, generator=generator) < 0.3).mT
    priority, nodes = torch.rand(2, 3, 9, generator=generator), torch.rand(2, 3, 9, generator=generator) < 0.8
    assert torch.equal(graph.independent_set(blocks, priority, nodes), in_torch(blocks, priority, nodes))
    assert torch.equal(
        graph.independent_set(blocks[1, 2], priority[1, 2], nodes[1, 2]), in_torch(blocks, priority, nodes)[1, 2]
    )
    empty = torch.zeros(2, 0, dtype=torch.bool)
    assert graph.independent_set(torch.zeros(2, 0, 0, dtype=torch.bool), torch.zeros(2, 0), empty).shape == (2, 0)
