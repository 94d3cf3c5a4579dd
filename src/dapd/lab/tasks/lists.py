"""`shuffle`: a list of names in any other order. Every name of the answer depends on all the others."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dapd.lab.tasks.base import Edge, Example, Task, clique
from dapd.lab.tasks.lexicon import NAMES

ASK = "Shuffle the list:"

_NAMES = frozenset(NAMES)


@dataclass(frozen=True)
class Shuffle(Task):
    """Lists of `shortest` to `longest` names."""

    name: str = "shuffle"
    shortest: int = 3
    longest: int = 12

    room = 32
    scored = "any reordering of the list but the list itself"
    graph = "all pairs of names"

    def draw(self, rng: random.Random) -> Example:
        names = rng.sample(NAMES, rng.randint(self.shortest, self.longest))
        order = names
        while order == names:
            order = rng.sample(names, len(names))
        return Example(self.name, f"{ASK} {', '.join(names)}", ", ".join(order), {"names": names})

    def score(self, example: Example, text: str) -> float:
        names = example.meta["names"]
        order = text.split(", ")
        return float(sorted(order) == sorted(names) and order != names)

    def edges(self, example: Example, tokens: Sequence[str]) -> set[Edge]:
        return clique(i for i, token in enumerate(tokens) if token.strip() in _NAMES)

    def words(self) -> Iterable[str]:
        return (ASK, ", ".join(NAMES))
