"""A strategy's side of the contract: the form of its answers, idle passes, and the memory that it is given back."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

from dapd import DapdError, Decoder, Needs, Options, Selection, StrategyContractError, TopK, decode
from decoding.scenes import Leftmost, canvas, unequal
from reference.models import PROMPTS, build
from reference.ours import one, run
from reference.scripted import Scripted, rising


class SelectsNothing:
    def select(self, seen, memory=None):
        return Selection(torch.zeros_like(seen.masked))


class SelectsThePrompt:
    needs = Needs(sees="canvas")

    def select(self, seen, memory=None):
        return Selection(torch.ones_like(seen.masked))


class SelectsTwice:
    """The first column of the block, again and again."""

    def select(self, seen, memory=None):
        commit = torch.zeros_like(seen.masked)
        commit[:, 0] = True
        return Selection(commit)


def unchecked(commit, edges=None):
    """A selection past the shape checks that run with the tests: outside of them nothing stops a wrong one."""
    return SimpleNamespace(commit=commit, memory=None, edges=edges)


class SelectsNumbers:
    def select(self, seen, memory=None):
        return unchecked(seen.masked.long())


class SelectsTooFew:
    def select(self, seen, memory=None):
        return unchecked(seen.masked[:, 1:])


class SelectsOneRow:
    def select(self, seen, memory=None):
        return unchecked(seen.masked[0])


class SelectsAList:
    def select(self, seen, memory=None):
        return unchecked(seen.masked.tolist())


class GivesTheEdgesOfOneRow:
    def select(self, seen, memory=None):
        return unchecked(seen.masked, edges=seen.masked[0, :, None] & seen.masked[0])


class GivesPairs:
    def select(self, seen, memory=None):
        return unchecked(seen.masked, edges=[(0, 1)])


@pytest.mark.parametrize(
    ("strategy", "complaint"),
    [
        (SelectsNothing(), "selected nothing"),
        (SelectsThePrompt(), "not masked"),
        (SelectsTwice(), "not masked"),
        (SelectsNumbers(), "bool"),
        (SelectsTooFew(), "shape"),
        (SelectsOneRow(), "shape"),
        (SelectsAList(), r"selected a list; it must be a bool tensor of shape \[1, 6\]"),
        (GivesTheEdgesOfOneRow(), r"gave as edges a torch.bool tensor of shape \[6, 6\]; .* of shape \[1, 6, 6\]"),
        (GivesPairs(), "gave as edges a list"),
    ],
)
@pytest.mark.parametrize("reuse", ["none", "prefix"])
def test_a_broken_contract_is_an_error_that_names_the_strategy(strategy, complaint, reuse):
    if reuse == "prefix" and isinstance(strategy, SelectsThePrompt):
        reuse = "none"
    with pytest.raises(StrategyContractError, match=complaint) as caught:
        list(decode(Scripted(rising), canvas(), strategy, Options(reuse=reuse)))
    assert type(strategy).__name__ in str(caught.value)
    assert isinstance(caught.value, DapdError)


def test_the_error_says_at_which_step_and_row():
    with pytest.raises(StrategyContractError, match=r"step 1, row [01]"):
        list(decode(Scripted(rising), canvas(4, [1], [2, 3]), SelectsTwice()))


def test_nothing_may_be_selected_where_one_row_still_needs_it():
    class FirstRowOnly:
        def select(self, seen, memory=None):
            commit = seen.masked.clone()
            commit[1:] = False
            return Selection(commit)

    with pytest.raises(StrategyContractError, match=r"FirstRowOnly selected nothing \(step 0, row 1\)"):
        list(decode(Scripted(rising), canvas(4, [2, 3], [1]), FirstRowOnly()))


def test_idle_passes_are_allowed_as_far_as_declared_and_in_a_row():
    class Hesitates:
        needs = Needs(max_idle=2)

        def __init__(self, pauses):
            self.pauses = pauses

        def select(self, seen, memory=None):
            count = 0 if memory is None else memory
            first = seen.masked & (seen.masked.cumsum(-1) == 1)
            return Selection(first if count % (self.pauses + 1) == self.pauses else first & False, count + 1)

    assert one(Scripted(rising), [1], 3, Hesitates(2)).nfe == 9
    with pytest.raises(StrategyContractError, match="Hesitates selected nothing"):
        one(Scripted(rising), [1], 3, Hesitates(3))


def test_a_class_with_select_alone_is_a_strategy():
    result = one(Scripted(rising), [1, 2], 5, Leftmost())
    assert result.tokens == [1, 2, 2, 3, 4, 5, 0]
    assert result.steps == [{2: 2}, {3: 3}, {4: 4}, {5: 5}, {6: 0}]


@pytest.mark.parametrize("options", [Options(block_length=2), Options(block_length=3, reuse="dual")])
def test_a_users_class_in_blocks_and_with_a_cache(options):
    model = build("llada", 1)
    result = one(model, PROMPTS[0], 6, Leftmost(), options)
    assert [list(step) for step in result.steps] == [[5], [6], [7], [8], [9], [10]]


@pytest.mark.parametrize("thing", [object(), None, "dapd-staged", TopK, Leftmost])
def test_what_is_not_a_strategy_is_refused_at_once(thing):
    with pytest.raises(DapdError, match="select"):
        decode(Scripted(rising), canvas(), thing)


@dataclass(frozen=True)
class Box:
    count: torch.Tensor


class Pair(NamedTuple):
    count: torch.Tensor
    twice: torch.Tensor


SHAPES = {
    "tensor": (lambda c: c, lambda m: m),
    "dict": (lambda c: {"count": c}, lambda m: m["count"]),
    "list": (lambda c: [c, 1], lambda m: m[0]),
    "tuple": (lambda c: (1, c), lambda m: m[1]),
    "dataclass": (Box, lambda m: m.count),
    "nested": (lambda c: {"a": [Box(c)]}, lambda m: m["a"][0].count),
    "named tuple": (lambda c: Pair(c, 2 * c), lambda m: m.count),
}


class CountsCalls(Leftmost):
    """Counts its calls, row by row, in its memory."""

    def __init__(self, wrap, unwrap):
        self.wrap, self.unwrap, self.counts = wrap, unwrap, []

    def select(self, seen, memory=None):
        count = torch.zeros(len(seen.masked)) if memory is None else self.unwrap(memory)
        self.counts.append(count.tolist())
        return Selection(super().select(seen).commit, self.wrap(count + 1))


@pytest.mark.parametrize("shape", list(SHAPES))
def test_every_row_takes_its_memory_along(shape):
    """The first row leaves before the others; a third, which waited, starts with no memory and joins them later."""
    counter = CountsCalls(*SHAPES[shape])
    rows = [*unequal(), *canvas(2, [5])]
    list(decode(Scripted(rising), rows, counter, Options(block_length=2), places=2))
    assert counter.counts == [[0, 0], [1, 1], [2, 2], [3], [0], [1]]


@dataclass(frozen=True)
class Numbers:
    """Remembers a number that is no tensor: only rows that have the same number are decided together."""

    def select(self, seen, memory=None):
        number = 1 if memory is None else memory + 1
        return Selection(seen.masked & (seen.masked.cumsum(-1) <= number), number)


def test_what_is_remembered_besides_tensors_must_agree():
    model = Scripted(rising)
    rows = [*canvas(6, [1, 2]), *canvas(1, [1]), *canvas(3, [5])]
    together = run(model, rows, Numbers(), places=2)
    assert [[len(step) for step in row.steps] for row in together] == [[1, 2, 3], [1], [1, 2]]


def test_a_memory_without_a_batch_is_refused():
    class Forgets(Leftmost):
        def select(self, seen, memory=None):
            return Selection(super().select(seen).commit, torch.zeros(3))

    with pytest.raises(StrategyContractError, match=r"Forgets remembers tensors of shape \[3\] for a batch of"):
        list(decode(Scripted(rising), canvas(4, [1], [2]), Forgets()))


def test_a_memory_that_is_refused_costs_the_neighbours_nothing():
    """Their pass is made again without it, with what they remembered before."""

    class Forgets(Leftmost):
        def select(self, seen, memory=None):
            return Selection(super().select(seen).commit, torch.zeros(3))

    decoder = Decoder(Scripted(rising))
    decoder.admit(*canvas(6, [1, 2]), Numbers(), name="good")
    decoder.admit(*canvas(4, [1]), Forgets(), name="bad")
    steps = []
    while decoder.rows or decoder.waiting:
        steps += decoder.step()
    assert list(decoder.failures) == ["bad"]
    assert [(step.row, step.index, int(step.commit.sum())) for step in steps] == [
        ("good", 0, 1), ("good", 1, 2), ("good", 2, 3),
    ]  # fmt: skip


def test_memory_starts_as_none_and_two_decodings_share_nothing():
    counter = CountsCalls(*SHAPES["tensor"])
    for _ in range(2):
        list(decode(Scripted(rising), canvas(2), counter))
    assert counter.counts == [[0], [1], [0], [1]]
