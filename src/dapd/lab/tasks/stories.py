"""`story`: word problems. Someone owns things, gets some and loses some; the answer does the sums in free wording.

The words of the answer are a free choice, but its numbers are a chain of sums: every step begins with the result of the
one before. A decoder that takes both for the same kind of uncertainty gets the numbers wrong.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from dapd.lab.tasks.base import Example, Task
from dapd.lab.tasks.grammar import Node, accepts, chain, draw, falling, leaves
from dapd.lab.tasks.lexicon import NAMES, THINGS

GAINS = ("buys {n} more", "finds {n} more", "gets {n} from {b}", "wins {n} more")
LOSSES = ("loses {n}", "sells {n}", "gives {n} to {b}", "throws {n} away")

LOWEST = 2
"""Smallest number of things at any time: with a single one, the noun would have to be singular."""

TOP = 99
"""Largest number of things at any time."""

LARGEST = 9
"""Largest number that is gained or lost at once, so that every step adds or subtracts a single digit."""


@dataclass(frozen=True)
class Event:
    """Something that changes how many things there are."""

    before: int
    word: str
    """`plus` or `minus`."""
    n: int
    after: int
    told: str
    """What the owner does: `buys 5 more`."""


@dataclass(frozen=True)
class Plot:
    """Who owns what, and what happens."""

    owner: str
    thing: str
    events: tuple[Event, ...]

    @property
    def prompt(self) -> str:
        """The word problem."""
        told = [event.told for event in self.events]
        did = ", ".join(told[:-1]) + f" and then {told[-1]}"
        first = self.events[0].before
        return f"{self.owner} has {first} {self.thing}, {did}. How many {self.thing} does {self.owner} have now?"

    def answers(self) -> Node:
        """All right answers: a beginning, a sentence or two for each event, an end."""
        first = self.events[0].before
        last = self.events[-1].after
        beginning = falling(
            "",
            f"{self.owner} has {first} {self.thing}. ",
            f"At first, {self.owner} has {first}. ",
            "Let me think. ",
            f"We start with {first} {self.thing}. ",
            "Let me see what we have here. ",
        )
        steps = [part for event in self.events for part in (self._step(event), " ")]
        end = falling(
            f"So {self.owner} has {last} {self.thing} now.",
            f"So the answer is {last}.",
            f"The answer is {last} {self.thing}.",
            f"That makes {last}.",
            f"So, in the end, {self.owner} has {last} {self.thing}, and the answer is {last}.",
        )
        return chain(beginning, *steps, end)

    def _step(self, event: Event) -> Node:
        """All right sentences about one event."""
        before = event.before
        word = event.word
        n = event.n
        after = event.after
        return falling(
            f"{before} {word} {n} is {after}.",
            f"{self.owner} {event.told}, and {before} {word} {n} is {after}.",
            f"Then there are {after} {self.thing}, for {before} {word} {n} is {after}.",
            f"{self.owner} {event.told}. That makes {after}.",
            f"After that, {self.owner} has {before} {word} {n} {self.thing}, which is {after}.",
        )


@dataclass(frozen=True)
class Stories(Task):
    """Two to four events, one question."""

    name: str = "story"
    fewest: int = 2
    most: int = 4

    room = 96
    scored = "every step and the final number are right, in any of the wordings"
    graph = None

    def draw(self, rng: random.Random) -> Example:
        plot = draw_plot(rng, rng.randint(self.fewest, self.most))
        events = [list(vars(event).values()) for event in plot.events]
        meta = {"owner": plot.owner, "thing": plot.thing, "events": events}
        return Example(self.name, plot.prompt, draw(plot.answers(), rng), meta)

    def score(self, example: Example, text: str) -> float:
        events = tuple(Event(*values) for values in example.meta["events"])
        plot = Plot(example.meta["owner"], example.meta["thing"], events)
        return float(accepts(plot.answers(), text))

    def words(self) -> Iterable[str]:
        told = [text.format(n=1, b=NAMES[0]) for text in (*GAINS, *LOSSES)]
        for thing in THINGS:
            plot = Plot(NAMES[0], thing, tuple(Event(1, "plus", 1, 1, one) for one in told))
            yield plot.prompt
            yield from leaves(plot.answers())
        yield from (*NAMES, "plus minus")


def draw_plot(rng: random.Random, n_events: int) -> Plot:
    """A story in which there are never fewer things than `LOWEST` nor more than `TOP`."""
    owner, other = rng.sample(NAMES, 2)
    count = rng.randint(5, 60)
    events: list[Event] = []
    for _ in range(n_events):
        gain = count == LOWEST or (count < TOP and rng.random() < 0.5)
        n = rng.randint(1, min(LARGEST, TOP - count if gain else count - LOWEST))
        after = count + n if gain else count - n
        told = rng.choice(GAINS if gain else LOSSES).format(n=n, b=other)
        events.append(Event(count, "plus" if gain else "minus", n, after, told))
        count = after
    return Plot(owner, rng.choice(THINGS), tuple(events))
