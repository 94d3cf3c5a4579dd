"""Single questions, and the styles in which each may be answered.

All styles of one question have the same number of tokens. So in a bundle the place of every answer follows from the
prompt, and the only link between tokens is the style of their own question.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from dapd.lab.tasks.lexicon import FACTS

N_STYLES = 10


@dataclass(frozen=True)
class Manner:
    """The words of one style of reckoning. The numbers and their places are the same in every style."""

    first: str
    """Opens the first step."""
    then: str
    """Opens every later step."""
    verb: str


# No two styles have a word in common where they differ: any such word gives the style away.
MANNERS = (
    Manner("First", "Then", "is"),
    Manner("Now", "Next", "makes"),
    Manner("Here", "Also", "gives"),
    Manner("Well", "After", "equals"),
    Manner("Simply", "Second", "becomes"),
    Manner("Clearly", "So", "matches"),
    Manner("Start", "Continue", "means"),
    Manner("Note", "Again", "yields"),
    Manner("Surely", "Likewise", "reaches"),
    Manner("Easy", "Finally", "shows"),
)

RECALLS = (
    ("We think about {x}.", "We recall that {s} is {y}."),
    ("Let us consider {x}.", "Everyone knows that {s} is {y}."),
    ("Look again at {x}.", "It follows that {s} is {y}."),
    ("Begin here with {x}.", "Books say that {s} is {y}."),
    ("This one concerns {x}.", "Teachers claim that {s} is {y}."),
    ("The topic is {x}.", "People agree that {s} is {y}."),
    ("Our focus becomes {x}.", "One finds that {s} is {y}."),
    ("You asked for {x}.", "Schools teach that {s} is {y}."),
    ("Some question mentions {x}.", "Memory tells that {s} is {y}."),
    ("Someone speaks of {x}.", "Nobody denies that {s} is {y}."),
)
"""Ten ways to recall a fact: {x} its subject, {s} the phrase asked about, {y} the answer."""

CONCLUSION = "Therefore, the answer is {y}."

SIGNS = {"plus": 1, "minus": -1}


@dataclass(frozen=True)
class Step:
    """One reckoning: `left word right` is `result`; the word is one of plus, minus, times."""

    left: int
    word: str
    right: int
    result: int

    def text(self, manner: Manner) -> str:
        return f"{self.left} {self.word} {self.right} {manner.verb} {self.result}"


def reckon(steps: Iterable[Step], manner: Manner) -> str:
    """The steps as sentences of one style."""
    return " ".join(f"{manner.then if i else manner.first}, {step.text(manner)}." for i, step in enumerate(steps))


@dataclass(frozen=True)
class Sum:
    """A two-digit sum or difference, done in two steps: first the tens, then the ones."""

    a: int
    word: str
    b: int

    def ask(self) -> str:
        return f"What is {self.a} {self.word} {self.b}?"

    @property
    def answer(self) -> str:
        return str(self.a + SIGNS[self.word] * self.b)

    def tell(self, style: int) -> str:
        tens, ones = self.b - self.b % 10, self.b % 10
        half = self.a + SIGNS[self.word] * tens
        steps = [Step(self.a, self.word, tens, half), Step(half, self.word, ones, int(self.answer))]
        return f"{reckon(steps, MANNERS[style])} {CONCLUSION.format(y=self.answer)}"


@dataclass(frozen=True)
class Product:
    """A product of digits with something added: two steps in a fixed order."""

    a: int
    b: int
    c: int

    def ask(self) -> str:
        return f"What is {self.a} times {self.b} plus {self.c}?"

    @property
    def answer(self) -> str:
        return str(self.a * self.b + self.c)

    def tell(self, style: int) -> str:
        product = self.a * self.b
        steps = [Step(self.a, "times", self.b, product), Step(product, "plus", self.c, int(self.answer))]
        return f"{reckon(steps, MANNERS[style])} {CONCLUSION.format(y=self.answer)}"


@dataclass(frozen=True)
class Fact:
    """A fact of the lexicon."""

    relation: str
    subject: str

    def ask(self) -> str:
        return f"What is {self.relation} {self.subject}?"

    @property
    def answer(self) -> str:
        return FACTS[self.relation][self.subject]

    def tell(self, style: int) -> str:
        topic, claim = RECALLS[style]
        claim = claim.format(s=f"{self.relation} {self.subject}", y=self.answer)
        return f"{topic.format(x=self.subject)} {claim} {CONCLUSION.format(y=self.answer)}"


Question = Sum | Product | Fact


def draw_question(rng: random.Random) -> Question:
    """Half arithmetic, half facts."""
    kind = rng.randrange(6)
    if kind < 3:
        relation = rng.choice(tuple(FACTS))
        return Fact(relation, rng.choice(tuple(FACTS[relation])))
    if kind == 3:
        a, b = rng.randint(2, 9), rng.randint(2, 9)
        return Product(a, b, rng.randint(2, 99 - a * b))
    # Tens and ones of b are never zero, and what stands between the two steps has two digits.
    b = 10 * rng.randint(1, 7) + rng.randint(1, 9)
    if kind == 4:
        return Sum(rng.randint(10, 99 - b), "plus", b)
    return Sum(rng.randint(b - b % 10 + 10, 99), "minus", b)


def to_plain(question: Question) -> list[Any]:
    """A question as plain values, for an example's meta."""
    return [type(question).__name__, *vars(question).values()]


def from_plain(values: list[Any]) -> Question:
    kinds: dict[str, Callable[..., Question]] = {"Sum": Sum, "Product": Product, "Fact": Fact}
    return kinds[values[0]](*values[1:])


def question_words() -> list[str]:
    """Texts with every word of the questions and their answers."""
    facts = [Fact(relation, subject) for relation, subjects in FACTS.items() for subject in subjects]
    sums: list[Question] = [Sum(34, "plus", 25), Sum(78, "minus", 25), Product(3, 4, 5)]
    asked: list[Question] = [*facts, *sums]
    return [q.ask() for q in asked] + [q.tell(style) for q in asked for style in range(N_STYLES)]
