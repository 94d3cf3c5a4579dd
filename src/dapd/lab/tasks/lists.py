"""Operations on a list of names: some have one right answer, others leave a choice that links all the names."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dapd.lab.tasks.base import Edge, Example, Task, clique
from dapd.lab.tasks.lexicon import NAMES

SHORTEST, LONGEST = 3, 12

_NAMES = frozenset(NAMES)


@dataclass(frozen=True)
class Operation:
    """A list operation: how it is asked for, one way to do it, and which results are right."""

    ask: str
    """The prompt before the list; `{place}` counts from 1, `{new}` is a name that the list does not hold."""
    do: Callable[[list[str], int, str, random.Random], list[str]]
    right: Callable[[list[str], int, str, list[str]], bool]
    free: bool = False
    """Whether the answer holds a choice, which then links all the names of the answer."""
    room: int = 0
    """How many places beyond the list's own the index may name."""


def _shuffled(names: list[str], rng: random.Random) -> list[str]:
    """A uniform reordering other than the list as it stands."""
    while True:
        order = rng.sample(names, len(names))
        if order != names:
            return order


def _insert(names: list[str], place: int, new: str) -> list[str]:
    return [*names[: place - 1], new, *names[place - 1 :]]


def _remove(names: list[str], place: int) -> list[str]:
    return names[: place - 1] + names[place:]


def _replace(names: list[str], place: int, new: str) -> list[str]:
    return [*names[: place - 1], new, *names[place:]]


def _any_place(names: list[str], extra: int = 0) -> range:
    return range(1, len(names) + 1 + extra)


OPERATIONS = {
    "copy": Operation("Copy the list:", lambda x, i, n, r: list(x), lambda x, i, n, out: out == x),
    "reverse": Operation("Reverse the list:", lambda x, i, n, r: x[::-1], lambda x, i, n, out: out == x[::-1]),
    "sort": Operation("Sort the list:", lambda x, i, n, r: sorted(x), lambda x, i, n, out: out == sorted(x)),
    "shuffle": Operation(
        "Shuffle the list:",
        lambda x, i, n, r: _shuffled(x, r),
        lambda x, i, n, out: sorted(out) == sorted(x) and out != x,
        free=True,
    ),
    "insert_index": Operation(
        "Insert {new} at position {place} of the list:",
        lambda x, i, n, r: _insert(x, i, n),
        lambda x, i, n, out: out == _insert(x, i, n),
        room=1,
    ),
    "insert_random": Operation(
        "Insert {new} at a random position of the list:",
        lambda x, i, n, r: _insert(x, r.choice(_any_place(x, 1)), n),
        lambda x, i, n, out: any(out == _insert(x, k, n) for k in _any_place(x, 1)),
        free=True,
    ),
    "remove_index": Operation(
        "Remove position {place} of the list:",
        lambda x, i, n, r: _remove(x, i),
        lambda x, i, n, out: out == _remove(x, i),
    ),
    "remove_random": Operation(
        "Remove a random position of the list:",
        lambda x, i, n, r: _remove(x, r.choice(_any_place(x))),
        lambda x, i, n, out: any(out == _remove(x, k) for k in _any_place(x)),
        free=True,
    ),
    "replace_index": Operation(
        "Put {new} in place of position {place} of the list:",
        lambda x, i, n, r: _replace(x, i, n),
        lambda x, i, n, out: out == _replace(x, i, n),
    ),
    "replace_random": Operation(
        "Put {new} in place of a random position of the list:",
        lambda x, i, n, r: _replace(x, r.choice(_any_place(x)), n),
        lambda x, i, n, out: any(out == _replace(x, k, n) for k in _any_place(x)),
        free=True,
    ),
}


@dataclass(frozen=True)
class ListTask(Task):
    """One operation on lists of `shortest` to `longest` names."""

    name: str
    shortest: int = SHORTEST
    longest: int = LONGEST

    room = 32

    @property
    def scored(self) -> str:
        return f"{self.operation.ask} {'any list that fits' if self.operation.free else 'the one right list'}"

    @property
    def graph(self) -> str:
        return "all pairs of names" if self.operation.free else "none: the prompt decides every name"

    @property
    def operation(self) -> Operation:
        return OPERATIONS[self.name]

    def draw(self, rng: random.Random) -> Example:
        size = rng.randint(self.shortest, self.longest)
        *names, new = rng.sample(NAMES, size + 1)
        place = rng.randint(1, size + self.operation.room)
        ask = self.operation.ask.format(place=place, new=new)
        answer = ", ".join(self.operation.do(names, place, new, rng))
        meta = {"names": names, "place": place, "new": new}
        return Example(self.name, f"{ask} {', '.join(names)}", answer, meta)

    def score(self, example: Example, text: str) -> float:
        meta = example.meta
        return float(self.operation.right(meta["names"], meta["place"], meta["new"], text.split(", ")))

    def edges(self, example: Example, tokens: Sequence[str]) -> set[Edge]:
        if not self.operation.free:
            return set()
        return clique(i for i, token in enumerate(tokens) if token.strip() in _NAMES)

    def words(self) -> Iterable[str]:
        return (self.operation.ask.format(place=1, new=NAMES[0]), ", ".join(NAMES))
