"""Single questions, and every free-form answer that is right.

An answer is an opening, the reasoning, an aside, an ending and a closing, drawn independently of each other; all but
the reasoning may be missing. The forms differ in length and share words, as those of people do: from a few words of an
answer one cannot tell where the others stand.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from dapd.lab.tasks.facts import RELATIONS
from dapd.lab.tasks.grammar import Choice, Node, chain, even, falling, leaves, maybe, weighed

OPENING = falling(
    "",
    "Sure. ",
    "Let me think. ",
    "Good question. ",
    "I know this one. ",
    "Well, let me see. ",
    "That is an easy one. ",
    "Here is what I know. ",
    "Let me think about that one. ",
    "Thank you for the question. ",
    "I am happy to help with this one. ",
    "That is a good question, and an easy one. ",
)

CLOSING = maybe(
    0.12,
    falling(
        " I hope that helps.",
        " That is all.",
        " Let me know if that helps.",
        " That is all that I know about this one.",
    ),
)

ASIDES: tuple[Node, ...] = (
    " I am quite sure about that.",
    " That is good to know.",
    " Many people know this one well.",
    " I know that from school.",
    " It is easy to see, I think.",
)

SIGNS = {"plus": 1, "minus": -1}


def endings(answer: str) -> Choice:
    """Ways to repeat the answer at the end. The most common one is not to repeat it."""
    return falling(
        "",
        f" So the answer is {answer}.",
        f" The answer is {answer}.",
        f" So it is {answer}.",
        f" Therefore, {answer} is the answer.",
        f" That makes {answer} the answer.",
        f" So, as far as I can see, the answer is {answer}.",
        f" And that is why I think that the answer is {answer}.",
    )


def capital(text: str) -> str:
    """The text as the beginning of a sentence."""
    return text[0].upper() + text[1:]


@dataclass(frozen=True)
class Question(ABC):
    """A question with one right result and many right answers."""

    asides: ClassVar[tuple[Node, ...]] = ASIDES

    @property
    @abstractmethod
    def asks(self) -> tuple[str, ...]:
        """Ways to ask it."""

    @property
    @abstractmethod
    def result(self) -> str:
        """The fact or number that every right answer states."""

    @abstractmethod
    def reasoning(self) -> Node:
        """The heart of the answer: it always holds the result."""

    def aside(self) -> Node:
        return maybe(0.25, falling(*self.asides))

    @classmethod
    @abstractmethod
    def draw(cls, rng: random.Random) -> Question: ...


@lru_cache(maxsize=4096)
def answers(question: Question) -> Node:
    """All right answers to a question."""
    return chain(OPENING, question.reasoning(), question.aside(), endings(question.result), CLOSING)


@dataclass(frozen=True)
class Fact(Question):
    """A fact of the world."""

    relation: str
    subject: str

    @property
    def asks(self) -> tuple[str, ...]:
        return tuple(ask.format(x=self.subject) for ask in RELATIONS[self.relation].asks)

    @property
    def result(self) -> str:
        return RELATIONS[self.relation].known[self.subject]

    @property
    def phrase(self) -> str:
        """The thing asked for, such as `the capital of France`."""
        return RELATIONS[self.relation].phrase.format(x=self.subject)

    def reasoning(self) -> Node:
        s = self.phrase
        y = self.result
        others = sorted(set(RELATIONS[self.relation].known.values()) - {y})
        return falling(
            f"{capital(s)} is {y}.",
            f"{capital(y)} is {s}.",
            f"I know that {s} is {y}.",
            chain("Some people think that it is ", even(*others), f", but {s} is {y}."),
            f"As far as I know, {s} is {y}.",
            f"The question is about {s}, and that is {y}.",
            f"If people ask for {s}, I think of {y}, for {y} is {s}.",
            f"It is {y}.",
            f"What we look for here is {s}. It is {y}, as many people know.",
        )

    def aside(self) -> Node:
        told = [
            f" By the way, {relation.phrase.format(x=self.subject)} is {relation.known[self.subject]}."
            for name, relation in RELATIONS.items()
            if name != self.relation and name in COUNTRY and self.subject in relation.known
        ]
        return maybe(0.3, falling(*told, *self.asides))

    @classmethod
    def draw(cls, rng: random.Random) -> Fact:
        relation = rng.choice(tuple(RELATIONS))
        return cls(relation, rng.choice(tuple(RELATIONS[relation].known)))


COUNTRY = ("capital", "continent", "currency", "language")
"""Relations of countries: an answer about one of them may mention another one as an aside."""


@dataclass(frozen=True)
class Reckoning(Question):
    """A question about numbers."""

    asides = (
        " This is easy to check.",
        " I am quite sure about that.",
        " It is easy to see, I think.",
        " That is all it takes.",
    )


@dataclass(frozen=True)
class Sum(Reckoning):
    """A two-digit sum or difference. Tens and ones may be taken in either order."""

    a: int
    word: str
    b: int

    @property
    def asks(self) -> tuple[str, ...]:
        return (f"What is {self.a} {self.word} {self.b}?", f"How much is {self.a} {self.word} {self.b}?")

    @property
    def result(self) -> str:
        return str(self.a + SIGNS[self.word] * self.b)

    def reasoning(self) -> Node:
        tens = self.b - self.b % 10
        ones = self.b % 10
        bare = f"{self.a} {self.word} {self.b} is {self.result}."
        # The bare result takes the sum of all digits in one go: the hardest form, and a rare one.
        return weighed((self._steps(tens, ones), self._steps(ones, tens), bare), (0.58, 0.36, 0.06))

    def _steps(self, first: int, second: int) -> Node:
        """The sum in two steps: `b` is split into tens and ones, and `first` is added or subtracted before `second`."""
        a = self.a
        w = self.word
        b = self.b
        y = self.result
        half = a + SIGNS[w] * first
        return falling(
            f"First, {a} {w} {first} is {half}. Then, {half} {w} {second} is {y}.",
            f"{a} {w} {first} is {half}, and {half} {w} {second} is {y}.",
            f"We take {b} as {first} and {second}. {a} {w} {first} is {half}, and {half} {w} {second} is {y}.",
            f"{a} {w} {first} is {half}. From there, {half} {w} {second} is {y}, and so {a} {w} {b} is {y}.",
            f"{b} is {first} and {second}, so first I take {a} {w} {first}, which is {half}, "
            f"and then {half} {w} {second}, which is {y}.",
        )

    @classmethod
    def draw(cls, rng: random.Random) -> Sum:
        # Tens and ones of b are never zero, and the result of the first step has two digits.
        b = 10 * rng.randint(1, 7) + rng.randint(1, 9)
        if rng.random() < 0.5:
            return cls(rng.randint(10, 99 - b), "plus", b)
        return cls(rng.randint(b - b % 10 + 10, 99), "minus", b)


@dataclass(frozen=True)
class Product(Reckoning):
    """A product of two digits with a digit added."""

    a: int
    b: int
    c: int

    @property
    def asks(self) -> tuple[str, ...]:
        return (
            f"What is {self.a} times {self.b} plus {self.c}?",
            f"How much is {self.a} times {self.b} plus {self.c}?",
        )

    @property
    def result(self) -> str:
        return str(self.a * self.b + self.c)

    def reasoning(self) -> Node:
        a = self.a
        b = self.b
        c = self.c
        p = self.a * self.b
        y = self.result
        return falling(
            f"First, {a} times {b} is {p}. Then, {p} plus {c} is {y}.",
            f"{a} times {b} is {p}, and {p} plus {c} is {y}.",
            f"We take {a} times {b}, which is {p}, and then {p} plus {c}, which is {y}.",
            f"{a} times {b} is {p}. From there, {p} plus {c} is {y}.",
            f"{p} is {a} times {b}, so first I take {p}, and then {p} plus {c} is {y}.",
        )

    @classmethod
    def draw(cls, rng: random.Random) -> Product:
        return cls(rng.randint(2, 9), rng.randint(2, 9), rng.randint(2, 9))


@dataclass(frozen=True)
class Unit:
    """A unit of measure and its parts."""

    one: str
    many: str
    parts: str
    size: int


UNITS = {
    unit.one: unit
    for unit in (
        Unit("hour", "hours", "minutes", 60),
        Unit("day", "days", "hours", 24),
        Unit("week", "weeks", "days", 7),
        Unit("year", "years", "months", 12),
        Unit("foot", "feet", "inches", 12),
        Unit("minute", "minutes", "seconds", 60),
    )
}


@dataclass(frozen=True)
class Units(Reckoning):
    """How many parts are in several units."""

    n: int
    unit: str

    @property
    def asks(self) -> tuple[str, ...]:
        unit = UNITS[self.unit]
        return (
            f"How many {unit.parts} are in {self.n} {unit.many}?",
            f"How many {unit.parts} do {self.n} {unit.many} have?",
        )

    @property
    def result(self) -> str:
        return str(self.n * UNITS[self.unit].size)

    def reasoning(self) -> Node:
        n = self.n
        unit = UNITS[self.unit]
        y = self.result
        size = unit.size
        parts = unit.parts
        return falling(
            f"One {unit.one} has {size} {parts}, and {n} times {size} is {y}.",
            f"There are {size} {parts} in one {unit.one}, so there are {y} in {n} {unit.many}.",
            f"We take {n} times {size}, which is {y}, for one {unit.one} has {size} {parts}.",
            f"{n} times {size} is {y}, so {n} {unit.many} have {y} {parts}.",
            f"As many people know, one {unit.one} has {size} {parts}, so {n} {unit.many} have {y}.",
        )

    @classmethod
    def draw(cls, rng: random.Random) -> Units:
        return cls(rng.randint(2, 9), rng.choice(tuple(UNITS)))


@dataclass(frozen=True)
class Larger(Reckoning):
    """Which of two numbers is the larger or the smaller one."""

    word: str
    a: int
    b: int

    @property
    def asks(self) -> tuple[str, ...]:
        return (
            f"Which number is {self.word}, {self.a} or {self.b}?",
            f"Which one is the {self.word} number, {self.a} or {self.b}?",
        )

    @property
    def result(self) -> str:
        return str((max if self.word == "larger" else min)(self.a, self.b))

    def reasoning(self) -> Node:
        w = self.word
        y = self.result
        z = self.a + self.b - int(y)
        other = {"larger": "smaller", "smaller": "larger"}[w]
        return falling(
            f"{y} is {w} than {z}.",
            f"{z} is {other} than {y}, so the {w} one is {y}.",
            f"Of {self.a} and {self.b}, the {w} one is {y}.",
            f"The question is about {self.a} and {self.b}, and {y} is the {w} number.",
            f"{y} is the {w} one, for {z} is {other} than {y}.",
        )

    @classmethod
    def draw(cls, rng: random.Random) -> Larger:
        a, b = rng.sample(range(10, 100), 2)
        return cls(rng.choice(("larger", "smaller")), a, b)


@dataclass(frozen=True)
class Next(Reckoning):
    """The next number of a sequence that grows by equal steps."""

    start: int
    step: int

    @property
    def row(self) -> list[int]:
        return [self.start + self.step * i for i in range(4)]

    @property
    def asks(self) -> tuple[str, ...]:
        row = ", ".join(map(str, self.row))
        return (f"Which number comes next: {row}?", f"What comes next after {row}?")

    @property
    def result(self) -> str:
        return str(self.row[-1] + self.step)

    def reasoning(self) -> Node:
        n = self.step
        last = self.row[-1]
        y = self.result
        return falling(
            f"Each number is {n} more than the one before, and {last} plus {n} is {y}.",
            f"The numbers grow by {n}, so the next one is {y}.",
            f"From one number to the next we take plus {n}. {last} plus {n} is {y}.",
            f"The next number is {last} plus {n}, which is {y}.",
            f"Here each number is the one before plus {n}, and {last} is the last one, so the next number is {y}.",
        )

    @classmethod
    def draw(cls, rng: random.Random) -> Next:
        return cls(rng.randint(10, 60), rng.randint(2, 9))


KINDS: dict[str, type[Question]] = {kind.__name__: kind for kind in (Fact, Sum, Product, Units, Larger, Next)}

SHARES = (0.52, 0.16, 0.08, 0.08, 0.08, 0.08)
"""Probability of each of `KINDS`, in the same order."""


def draw_question(rng: random.Random) -> Question:
    """Draw a question: about half of them are facts, the others are about numbers."""
    return rng.choices(tuple(KINDS.values()), SHARES)[0].draw(rng)


def to_plain(question: Question) -> list[Any]:
    """A question as plain values, for an example's meta."""
    return [type(question).__name__, *vars(question).values()]


def from_plain(values: list[Any]) -> Question:
    """The question that `to_plain` turned into these values."""
    return KINDS[values[0]](*values[1:])


def every_fact() -> list[Fact]:
    """All facts that can be asked for."""
    return [Fact(name, subject) for name, relation in RELATIONS.items() for subject in relation.known]


def question_words() -> Iterator[str]:
    """Texts with every word of the questions and of their answers."""
    numbers: list[Question] = [Sum(34, "plus", 25), Sum(78, "minus", 25), Product(3, 4, 5), Next(10, 3)]
    numbers += [Units(2, unit) for unit in UNITS] + [Larger(word, 34, 56) for word in ("larger", "smaller")]
    for question in [*every_fact(), *numbers]:
        yield from question.asks
        yield from leaves(answers(question))
