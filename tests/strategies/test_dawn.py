"""DAWN's three groups on attention made by hand."""

from dataclasses import replace

import pytest
import torch

from dapd import DapdError
from dapd.strategies import Dawn
from strategies.hand_made import logs, observe, select

# Columns 0 and 1 are decided and hold token 1; 2, 3 and 4 are masked. The model is sure of token 1 at column 0, and of
# another token at column 1.
SURE, SURE_OF_ANOTHER = [0.01, 0.96, 0.01, 0.01, 0.01], [0.96, 0.01, 0.01, 0.01, 0.01]
UNSURE = [0.5, 0.3, 0.1, 0.05, 0.05]


def scene(confidence, edges, *, decided=(SURE, SURE_OF_ANOTHER)):
    """edges: {(i, j): attention of i to j}."""
    attention = torch.zeros(5, 5)
    for (i, j), value in edges.items():
        attention[i, j] = value
    rows = [*decided, *([(1 - c) / 4, c, (1 - c) / 4, (1 - c) / 4, (1 - c) / 4] for c in confidence)]
    seen = observe(
        [*map(max, decided), *confidence],
        masked=[[False, False, True, True, True]],
        logits=logs(rows)[None],
        attention=attention,
    )
    return replace(seen, current=torch.tensor([[1, 1, 4, 4, 4]]))


RULE = Dawn(sink=1.0)
PAPER = Dawn(sink=1.0, reading="paper")


def test_the_confident_go():
    assert select(RULE, scene([0.9, 0.95, 0.1], {})) == [[2, 3]]


def test_an_edge_to_an_anchor_lets_a_lower_confidence_pass():
    assert select(RULE, scene([0.7, 0.7, 0.1], {(2, 0): 0.07})) == [[2]]
    assert select(RULE, scene([0.69, 0.1, 0.1], {(2, 0): 0.5, (3, 0): 0.5})) == [[2]], (
        "the best one, for want of others"
    )
    assert select(RULE, scene([0.7, 0.75, 0.1], {(2, 0): 0.06})) == [[3]]


def test_what_the_model_is_not_sure_of_is_no_anchor():
    for rule in (RULE, PAPER):
        assert select(rule, scene([0.7, 0.75, 0.1], {(2, 1): 0.5}, decided=(SURE, UNSURE))) == [[3]]


def test_an_anchor_by_the_program_and_by_the_paper():
    """At column 1 the model is sure, but not of the token that stands there."""
    seen = scene([0.7, 0.75, 0.1], {(2, 1): 0.5})
    assert select(RULE, seen) == [[2]]
    assert select(PAPER, seen) == [[3]]


def test_the_edge_points_from_the_one_that_attends():
    assert select(RULE, scene([0.7, 0.75, 0.1], {(0, 2): 0.5})) == [[3]]


def test_the_rest_forms_a_set_without_conflict():
    assert select(RULE, scene([0.85, 0.82, 0.81], {(3, 2): 0.2})) == [[2, 4]]
    assert select(RULE, scene([0.85, 0.82, 0.79], {})) == [[2, 3]]


def test_the_rest_keeps_away_from_what_is_accepted():
    """By the paper from all of it; by the program only from what is in both groups, and only if it attends to that."""
    for edges, program, paper in (
        ({(2, 3): 0.2}, [2, 3, 4], [2, 4]),
        ({(3, 2): 0.2}, [2, 3, 4], [2, 4]),
        ({(3, 2): 0.2, (2, 0): 0.2}, [2, 4], [2, 4]),
        ({(2, 3): 0.2, (2, 0): 0.2}, [2, 3, 4], [2, 4]),
    ):
        seen = scene([0.95, 0.85, 0.85], edges)
        assert (select(RULE, seen), select(PAPER, seen)) == ([program], [paper]), edges


def by_the_program(rule, confidence, masked, attention, block_end):
    """The authors' order of work, position by position, without the slip that overwrites the first token."""
    n = len(confidence)
    sinks = [sum(attention[i][j] for i in range(n)) / n > rule.sink for j in range(n)]
    edge = [[i != j and not sinks[j] and attention[i][j] >= rule.edge for j in range(n)] for i in range(n)]
    first = {i for i in range(n) if masked[i] and confidence[i] >= rule.confident}
    anchors = [j for j in range(block_end) if not masked[j] and confidence[j] >= rule.confident]
    second = {i for i in range(n) if masked[i] and confidence[i] >= rule.induce and any(edge[i][j] for j in anchors)}
    rest = [
        i
        for i in range(n)
        if masked[i]
        and confidence[i] >= rule.low
        and i not in first | second
        and not any(edge[i][j] for j in first & second)
    ]
    third = set()
    for i in sorted(rest, key=lambda i: -confidence[i]):
        if not any(edge[i][j] or edge[j][i] for j in third):
            third.add(i)
    best = max((i for i in range(n) if masked[i]), key=lambda i: confidence[i])
    return sorted(first | second | third or {best})


def test_random_scenes_are_decided_as_by_the_program():
    generator = torch.Generator().manual_seed(0)
    differ = 0
    for _ in range(300):
        n = 9
        rule = Dawn(confident=0.8, induce=0.4, low=0.5, edge=0.15, sink=0.16)
        confidence = torch.rand(n, generator=generator, dtype=torch.float64)
        masked = torch.rand(n, generator=generator) < 0.7
        masked[-3:] = True
        attention = torch.rand(n, n, generator=generator).pow(3)
        attention /= attention.sum(-1, keepdim=True)
        block_end = 7
        inside = masked & (torch.arange(n) < block_end)
        inside[3] = True
        seen = observe(confidence.tolist(), masked=[inside.tolist()], attention=attention)
        seen = replace(seen, block=torch.tensor([[2, block_end]]), current=torch.ones(1, n, dtype=torch.long))
        wanted = by_the_program(rule, confidence.tolist(), inside.tolist(), attention.tolist(), block_end)
        assert select(rule, seen) == [wanted]
        differ += select(replace(rule, reading="paper"), seen) != [wanted]
    assert differ > 30, "the two readings differ"


def test_sinks_have_no_edges():
    """Everyone attends to column 0: a mean of 0.2 received."""
    seen = scene([0.7, 0.75, 0.1], {(i, 0): 0.2 for i in range(1, 5)} | {(0, 0): 0.2})
    assert select(Dawn(sink=0.3), seen) == [[2, 3]]
    assert select(Dawn(sink=0.1), seen) == [[3]]


@pytest.mark.parametrize(
    "fields", [{"confident": 2.0}, {"induce": -1.0}, {"edge": 1.5}, {"sink": -0.1}, {"layers": ()}, {"reading": "mine"}]
)
def test_bad_fields(fields):
    with pytest.raises(DapdError, match=next(iter(fields))):
        Dawn(**fields)
