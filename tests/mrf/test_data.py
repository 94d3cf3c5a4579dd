import torch

from dapd.mrf.data import LENGTH, all_sequences, broken_constraints, draw_sequences, true_graph, valid

NODES = ("X1", "X2", "X3", "X4", "X5", "Y1", "Y2", "Y3", "Y4")


def test_the_true_graph_is_four_triangles():
    edge = true_graph()
    pairs = {(NODES[i], NODES[j]) for i in range(LENGTH) for j in range(i + 1, LENGTH) if edge[i, j]}
    expected = {(f"X{i}", f"X{i + 1}") for i in range(1, 5)}
    expected |= {(f"X{i}", f"Y{i}") for i in range(1, 5)} | {(f"X{i + 1}", f"Y{i}") for i in range(1, 5)}
    assert pairs == expected
    assert len(pairs) == 12
    assert torch.equal(edge, edge.T)
    assert not edge.diagonal().any()


def test_true_degrees():
    by_name = dict(zip(NODES, true_graph().sum(-1).tolist(), strict=True))
    assert by_name == {"X1": 2, "X2": 4, "X3": 4, "X4": 4, "X5": 2, "Y1": 2, "Y2": 2, "Y3": 2, "Y4": 2}


def test_there_are_243_different_sequences_and_all_are_valid():
    sequences = all_sequences()
    assert len({tuple(s) for s in sequences.tolist()}) == 243
    assert valid(sequences).all()
    for *x, y1, y2, y3, y4 in sequences.tolist():
        assert [y1, y2, y3, y4] == [(x[i] + x[i + 1]) % 3 for i in range(4)]


def test_a_changed_value_breaks_as_many_constraints_as_it_is_in():
    sequence = all_sequences()[100]
    triangles_of = [1, 2, 2, 2, 1, 1, 1, 1, 1]
    for i, count in enumerate(triangles_of):
        other = sequence.clone()
        other[i] = (other[i] + 1) % 3
        assert int(broken_constraints(other)) == count


def test_data_sets_follow_their_seed():
    assert torch.equal(draw_sequences(50, 3), draw_sequences(50, 3))
    assert not torch.equal(draw_sequences(50, 3), draw_sequences(50, 4))
    assert valid(draw_sequences(500, 0)).all()
