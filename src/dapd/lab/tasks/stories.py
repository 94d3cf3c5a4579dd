"""Word problems: someone owns things, gets some and loses some. The answer goes through the events step by step."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dapd.lab.tasks.base import Edge, Example, Task, clique, varying
from dapd.lab.tasks.lexicon import NAMES, THINGS
from dapd.lab.tasks.questions import CONCLUSION, MANNERS, Step, reckon

EVENTS = (
    ("plus", "{a} buys {n} more."),
    ("plus", "{a} finds {n} more."),
    ("minus", "{a} loses {n}."),
    ("minus", "{a} sells {n}."),
    ("minus", "{a} gives {n} to {b}."),
    ("times", "{a} doubles them."),
)

TOP = 99
"""No number of a story is larger."""

LARGEST = 9
"""The most that is gained or lost at once: every step is one addition of a digit."""


@dataclass(frozen=True)
class Stories(Task):
    """Two to four events, one question."""

    name: str = "story"
    fewest: int = 2
    most: int = 4

    room = 64
    scored = "every step and the final number are right, in one style from start to end"
    graph = "tokens that change with the style of the answer"

    def draw(self, rng: random.Random) -> Example:
        a, b = rng.sample(NAMES, 2)
        thing, count = rng.choice(THINGS), rng.randint(5, 60)
        told, steps = [f"{a} has {count} {thing}."], list[list[int | str]]()
        for _ in range(rng.randint(self.fewest, self.most)):
            word, text = _fitting(rng, count)
            n, after = _amount(rng, word, count)
            told.append(text.format(a=a, b=b, n=n))
            steps.append([count, word, n, after])
            count = after
        told.append(f"How many {thing} does {a} have?")
        meta = {"name": a, "thing": thing, "steps": steps}
        return Example(self.name, " ".join(told), rng.choice(_realisations(meta)), meta)

    def score(self, example: Example, text: str) -> float:
        return float(text in _realisations(example.meta))

    def edges(self, example: Example, tokens: Sequence[str]) -> set[Edge]:
        return {edge for edge in clique(varying(_realisations(example.meta))) if edge[1] < len(tokens)}

    def words(self) -> Iterable[str]:
        events = [text.format(a=a, b=a, n=1) for _, text in EVENTS for a in NAMES[:1]]
        question = [f"How many {thing} does {NAMES[0]} have? {NAMES[0]} has 1 {thing}." for thing in THINGS]
        meta = {"name": NAMES[0], "thing": THINGS[0], "steps": [[1, word, 1, 1] for word, _ in EVENTS]}
        return [*NAMES, *events, *question, *_realisations(meta)]


def _fitting(rng: random.Random, count: int) -> tuple[str, str]:
    """An event that leaves the count between 1 and `TOP`."""
    fits = {"plus": count < TOP, "minus": count > 1, "times": 2 * count <= TOP}
    return rng.choice([event for event in EVENTS if fits[event[0]]])


def _amount(rng: random.Random, word: str, count: int) -> tuple[int, int]:
    """The number of an event and the count after it."""
    if word == "times":
        return 2, 2 * count
    n = rng.randint(1, min(LARGEST, TOP - count if word == "plus" else count - 1))
    return n, count + n if word == "plus" else count - n


def _realisations(meta: Mapping[str, Any]) -> list[str]:
    """The answer in every style; all are equally long."""
    steps = [Step(*values) for values in meta["steps"]]
    start = f"{meta['name']} has {steps[0].left} {meta['thing']}."
    end = CONCLUSION.format(y=steps[-1].result)
    return [f"{start} {reckon(steps, manner)} {end}" for manner in MANNERS]
