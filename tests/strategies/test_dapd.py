"""DAPD's rule on attention made by hand."""

import pytest
import torch

from dapd import AttentionNeed, Dapd, DapdError
from strategies.hand_made import observe, progress, select

# Scores: 0-1 strong, 2-3 weak, all else nothing. Rows of the matrix need not sum to 1: the rest goes to the prompt.
PAIRS = torch.tensor(
    [
        [0.3, 0.4, 0.0, 0.0],
        [0.2, 0.1, 0.0, 0.0],
        [0.0, 0.0, 0.1, 0.02],
        [0.0, 0.0, 0.04, 0.3],
    ]
)
GRAPH = Dapd(0.1, 0.1, shortcut="none")


def test_an_independent_set_of_the_graph():
    """Degrees are 0.3 and 0.03; 0 and 1 exclude each other, and so do 2 and 3, for each row is measured by its best."""
    assert select(GRAPH, observe([0.5, 0.6, 0.9, 0.8], attention=PAIRS)) == [[1, 2]]


def test_raw_scores_know_no_weak_pair():
    raw = Dapd(0.1, 0.1, shortcut="none", edge_norm="none")
    assert select(raw, observe([0.5, 0.6, 0.9, 0.8], attention=PAIRS)) == [[1, 2, 3]]
    assert select(Dapd(0.0, 0.02, shortcut="none", edge_norm="none"), observe([0.5] * 4, attention=PAIRS)) == [[0, 2]]


def test_the_global_maximum_is_one_measure_for_all():
    norm = Dapd(0.15, 0.15, shortcut="none", edge_norm="global_max")
    assert select(norm, observe([0.5, 0.6, 0.9, 0.8], attention=PAIRS)) == [[1, 2, 3]]
    norm = Dapd(0.05, 0.05, shortcut="none", edge_norm="global_max")
    assert select(norm, observe([0.5, 0.6, 0.9, 0.8], attention=PAIRS)) == [[1, 2]]


def test_the_row_sum_as_measure():
    """Row 0 spreads over three neighbours: 1/3 each by sum, 1 each by maximum."""
    star = torch.tensor([[0.0, 0.2, 0.2, 0.2], [0.2, 0, 0, 0], [0.2, 0, 0, 0], [0.2, 0, 0, 0]])
    seen = observe([0.1, 0.9, 0.9, 0.9], attention=star)
    assert select(Dapd(0.5, 0.5, shortcut="none"), seen) == [[1, 2, 3]]
    assert select(Dapd(0.5, 0.5, shortcut="none", edge_norm="row_sum"), seen) == [[0, 1, 2, 3]]


def test_an_edge_is_above_tau_not_at_it():
    pair = torch.tensor([[0.0, 0.5], [0.5, 0.0]])
    assert select(Dapd(0.5, 0.5, shortcut="none", edge_norm="none"), observe([0.5, 0.5], attention=pair)) == [[0, 1]]
    assert select(Dapd(0.49, 0.49, shortcut="none", edge_norm="none"), observe([0.5, 0.5], attention=pair)) == [[0]]


@pytest.mark.parametrize(
    ("direction", "first_1", "first_2"),
    [("candidate_row", [1], [1, 2]), ("either", [1], [0, 2]), ("both", [1, 2], [1, 2])],
)
def test_direction(direction, first_1, first_2):
    """Of the pair 1-2, row 1 has a better neighbour and says 0.25, row 2 has none and says 1; tau is 0.3."""
    chain = torch.tensor([[0.0, 0.4, 0.0], [0.4, 0.0, 0.1], [0.0, 0.1, 0.0]])
    strategy = Dapd(0.3, 0.3, shortcut="none", direction=direction)
    assert select(strategy, observe([0.0, 0.20, 0.9], attention=chain)) == [first_1]
    assert select(strategy, observe([0.0, 0.15, 0.9], attention=chain)) == [first_2]


def test_order_is_degree_times_confidence():
    pair = torch.tensor([[0.0, 0.5, 0.0], [0.5, 0.0, 0.3], [0.0, 0.3, 0.0]])
    assert select(Dapd(0.0, 0.0, shortcut="none"), observe([0.6, 0.5, 0.1], attention=pair)) == [[1]]
    assert select(Dapd(0.0, 0.0, shortcut="none"), observe([0.9, 0.5, 0.1], attention=pair)) == [[0, 2]]
    by_confidence = Dapd(0.0, 0.0, shortcut="none", order="confidence")
    assert select(by_confidence, observe([0.6, 0.5, 0.1], attention=pair)) == [[0, 2]]


def test_degrees_and_edges_see_the_masked_only():
    """Column 1 is decided: 0 loses its strong neighbour, and the weak one 2 becomes its measure."""
    a = torch.tensor([[0.0, 0.8, 0.05], [0.8, 0.0, 0.0], [0.05, 0.0, 0.0]])
    strategy = Dapd(0.1, 0.1, shortcut="none")
    assert select(strategy, observe([0.5, 0.5, 0.5], attention=a)) == [[0]]
    with_0_and_2 = observe([0.5, 0.5, 0.4], attention=a, masked=[[True, False, True]])
    assert select(strategy, with_0_and_2) == [[0]]
    assert select(Dapd(0.1, 0.1, shortcut="none", edge_norm="none"), with_0_and_2) == [[0, 2]]


def test_a_single_mask_goes_and_so_do_those_without_any_attention():
    assert select(GRAPH, observe([0.1, 0.1], attention=torch.zeros(2, 2), masked=[[False, True]])) == [[1]]
    assert select(GRAPH, observe([0.1, 0.1, 0.1], attention=torch.zeros(3, 3))) == [[0, 1, 2]]


def test_ties_go_to_the_lowest_position():
    everyone = torch.full((4, 4), 0.25)
    assert select(GRAPH, observe([0.5, 0.5, 0.5, 0.5], attention=everyone)) == [[0]]


def test_tau_rises_with_the_unmasked_fraction_of_each_row():
    at = progress(3)
    at.remaining[1], at.remaining[2] = 4, 2
    tau = Dapd(0.01, 0.15).tau(at)
    torch.testing.assert_close(tau, torch.tensor([0.01, 0.08, 0.115], dtype=torch.float64))
    pair = torch.tensor([[0.0, 0.1], [0.1, 0.0]])
    strategy = Dapd(0.0, 0.2, shortcut="none", edge_norm="none")
    seen = observe([0.5, 0.5], [0.5, 0.5], [0.5, 0.5], attention=pair, at=at)
    assert select(strategy, seen) == [[0], [0, 1], [0, 1]]


def everyone_conflicts(*confidence, remaining):
    n = len(confidence)
    return observe(list(confidence), attention=torch.full((n, n), 1 / n), at=progress(remaining=remaining))


def test_staged_adds_the_confident_from_one_half_on():
    staged = Dapd(0.0, 0.0)
    assert select(staged, everyone_conflicts(0.95, 0.9, 0.89, 0.99, remaining=5)) == [[3]]
    assert select(staged, everyone_conflicts(0.95, 0.9, 0.89, 0.99, remaining=4)) == [[0, 1, 3]]
    assert select(staged, everyone_conflicts(0.3, 0.2, 0.1, 0.2, remaining=4)) == [[0]]
    assert select(Dapd(0.0, 0.0, shortcut="none"), everyone_conflicts(0.95, 0.9, 0.89, 0.99, remaining=4)) == [[3]]


@pytest.mark.parametrize("total", range(2, 60))
def test_the_switch_comes_at_the_fraction_itself(total):
    """1 - 9 / 10 is a little less than 0.1."""
    for decided in range(1, total):
        seen = observe([0.9, 0.95], attention=torch.ones(2, 2), at=progress(remaining=total - decided, total=total))
        assert select(Dapd(0.0, 0.0, switch_at=decided / total), seen) == [[0, 1]]


def test_the_union_keeps_the_graphs_choice_beside_the_confident():
    """0 is taken by the graph with little confidence; 1 has an edge to it and is confident: both go."""
    pair = torch.tensor([[0.0, 0.9, 0.9], [0.9, 0.0, 0.0], [0.9, 0.0, 0.0]])
    seen = observe([0.8, 0.95, 0.1], attention=pair, at=progress(remaining=3))
    assert select(Dapd(0.1, 0.1), seen) == [[0, 1]]
    assert select(Dapd(0.1, 0.1, late_rule="switch"), seen) == [[1]]
    assert select(Dapd(0.1, 0.1, late_rule="filter"), seen) == [[1]]


def test_switch_drops_the_graph_and_filter_keeps_it_among_the_confident():
    late = everyone_conflicts(0.95, 0.91, 0.2, 0.1, remaining=2)
    early = everyone_conflicts(0.95, 0.91, 0.2, 0.1, remaining=8)
    assert select(Dapd(0.0, 0.0, late_rule="switch"), late) == [[0, 1]]
    assert select(Dapd(0.0, 0.0, late_rule="filter"), late) == [[0]]
    for rule in ("union", "switch", "filter"):
        assert select(Dapd(0.0, 0.0, late_rule=rule), early) == [[0]]


def test_late_rules_always_select_something():
    nobody = everyone_conflicts(0.2, 0.4, 0.3, 0.1, remaining=2)
    for rule in ("union", "switch", "filter"):
        assert select(Dapd(0.0, 0.0, late_rule=rule), nobody) == [[1]]


def test_direct_takes_the_certain_which_neither_block_nor_are_blocked():
    direct = Dapd(0.0, 0.0, shortcut="direct")
    assert select(direct, everyone_conflicts(0.998, 1.0, 0.9979, 0.5, remaining=8)) == [[0, 1, 2]]
    assert select(direct, everyone_conflicts(0.9, 0.8, 0.7, 0.6, remaining=2)) == [[0]]
    letter = Dapd(0.0, 0.0, shortcut="direct", certain=1.0)
    assert select(letter, everyone_conflicts(0.998, 1.0, 0.9, 0.5, remaining=8)) == [[0, 1]]


def test_direct_leaves_degrees_and_edges_as_they_were():
    """The certain 0 stays in the sums: 2's tie to it is the measure that keeps the edge 2-1 below tau."""
    a = torch.tensor([[0.0, 0.0, 0.8], [0.0, 0.0, 0.1], [0.8, 0.1, 0.0]])
    seen = observe([1.0, 0.9, 0.01], attention=a)
    assert select(Dapd(0.2, 0.2, shortcut="direct"), seen) == [[0, 1, 2]]
    assert select(Dapd(0.1, 0.1, shortcut="direct"), seen) == [[0, 1]]


def test_edges_are_reported():
    selection = GRAPH.select(observe([0.5, 0.6, 0.9, 0.8], attention=PAIRS))
    assert selection.edges[0].nonzero().tolist() == [[0, 1], [1, 0], [2, 3], [3, 2]]


def test_what_it_asks_of_the_engine():
    assert Dapd().needs.attention == AttentionNeed(0.3, keys="window", rows="position")
    assert Dapd(layers=(4, 5), rows="predictor").needs.attention == AttentionNeed((4, 5), rows="predictor")


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"tau_min": 0.2, "tau_max": 0.1}, "tau_min is 0.2 and tau_max 0.1"),
        ({"tau_min": -0.1}, "tau_min"),
        ({"shortcut": "both"}, "staged, direct, none"),
        ({"late_rule": "never"}, "union, switch, filter"),
        ({"edge_norm": "max"}, "row_max, none, row_sum, global_max"),
        ({"direction": "row"}, "candidate_row, either, both"),
        ({"rows": "token"}, "position, predictor"),
        ({"confident": 1.2}, "confident"),
        ({"certain": -0.1}, "certain"),
        ({"switch_at": 2}, "switch_at"),
        ({"layers": 0.0}, "layers"),
        ({"layers": ()}, "layers"),
        ({"layers": [4, 5]}, r"layers is \[4, 5\]; it must be whole numbers such as 4,5,6 .* or a number"),
        ({"tau_min": "0.1"}, "tau_min is '0.1'; it must be a number"),
    ],
)
def test_bad_fields(fields, complaint):
    with pytest.raises(DapdError, match=complaint):
        Dapd(**fields)
