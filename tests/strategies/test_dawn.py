"""DAWN's three groups on attention made by hand."""

from dataclasses import replace

import pytest
import torch

from dapd import DapdError
from dapd.strategies import Dawn
from strategies.hand_made import logs, observe, select

# Columns 0 and 1 are decided (token 1, of which the model is sure at 0 alone); 2, 3 and 4 are masked.
SURE, UNSURE = [0.01, 0.96, 0.01, 0.01, 0.01], [0.96, 0.01, 0.01, 0.01, 0.01]


def scene(confidence, edges, *, decided=(SURE, UNSURE)):
    """edges: {(i, j): attention of i to j}."""
    attention = torch.zeros(5, 5)
    for (i, j), value in edges.items():
        attention[i, j] = value
    rows = [*decided, *([(1 - c) / 4, c, (1 - c) / 4, (1 - c) / 4, (1 - c) / 4] for c in confidence)]
    seen = observe(
        [0.96, 0.96, *confidence],
        masked=[[False, False, True, True, True]],
        logits=logs(rows)[None],
        attention=attention,
    )
    return replace(seen, current=torch.tensor([[1, 1, 4, 4, 4]]))


RULE = Dawn(sink=1.0)


def test_the_confident_go():
    assert select(RULE, scene([0.9, 0.95, 0.1], {})) == [[2, 3]]


def test_an_edge_to_an_anchor_lets_a_lower_confidence_pass():
    assert select(RULE, scene([0.7, 0.7, 0.1], {(2, 0): 0.07})) == [[2]]
    assert select(RULE, scene([0.69, 0.1, 0.1], {(2, 0): 0.5, (3, 0): 0.5})) == [[2]], (
        "the best one, for want of others"
    )
    assert select(RULE, scene([0.7, 0.75, 0.1], {(2, 0): 0.06})) == [[3]]


def test_a_decided_token_the_model_doubts_is_no_anchor():
    assert select(RULE, scene([0.7, 0.75, 0.1], {(2, 1): 0.5})) == [[3]]


def test_the_edge_points_from_the_one_that_attends():
    assert select(RULE, scene([0.7, 0.75, 0.1], {(0, 2): 0.5})) == [[3]]


def test_the_rest_forms_a_set_without_conflict():
    assert select(RULE, scene([0.85, 0.82, 0.81], {(3, 2): 0.2})) == [[2, 4]]
    assert select(RULE, scene([0.85, 0.82, 0.79], {})) == [[2, 3]]


def test_the_rest_keeps_away_from_what_is_accepted():
    assert select(RULE, scene([0.95, 0.85, 0.85], {(2, 3): 0.2})) == [[2, 4]]


def test_sinks_have_no_edges():
    """Everyone attends to column 0: a mean of 0.2 received."""
    seen = scene([0.7, 0.75, 0.1], {(i, 0): 0.2 for i in range(1, 5)} | {(0, 0): 0.2})
    assert select(Dawn(sink=0.3), seen) == [[2, 3]]
    assert select(Dawn(sink=0.1), seen) == [[3]]


@pytest.mark.parametrize(
    "fields", [{"confident": 2.0}, {"induce": -1.0}, {"edge": 1.5}, {"sink": -0.1}, {"layers": ()}]
)
def test_bad_fields(fields):
    with pytest.raises(DapdError, match=next(iter(fields))):
        Dawn(**fields)
