"""`tied`: a ladder of dependency. The questions and wordings stay the same, and the answers share one style as strongly
as the prompt says: not at all, mostly, or entirely.

All styles of one question have the same number of tokens and no word in common where they differ. So the place of every
token follows from the prompt, and it is known exactly which tokens depend on each other. This is the control for
`quiz`, where neither is known.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dapd.lab.tasks.base import Edge, Example, clique, pieces, varying
from dapd.lab.tasks.bundle import Bundle, numbered, parts
from dapd.lab.tasks.questions import SIGNS, Fact, Product, Question, Sum, every_fact, from_plain, to_plain

TIES = {
    0.0: "Answer each question in any style.",
    0.5: "Answer each question in mostly one style.",
    1.0: "Answer each question in one style.",
}
"""Strength of the tie -> the sentence of the prompt that says it. Each answer takes the shared style with that
probability, and otherwise a style of its own."""

CONCLUSION = "Therefore, the answer is {y}."


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
    "We think about this. We recall that {s} is {y}.",
    "Let us consider it. Everyone knows that {s} is {y}.",
    "Look again at memory. It follows that {s} is {y}.",
    "Begin here with care. Books say that {s} is {y}.",
    "No one doubts them. Teachers claim that {s} is {y}.",
    "The topic sounds familiar. People agree that {s} is {y}.",
    "Our focus becomes clear. One finds that {s} is {y}.",
    "You asked for facts. Schools teach that {s} is {y}.",
    "Some questions seem simple. Memory tells that {s} is {y}.",
    "Someone speaks of truth. Nobody denies that {s} is {y}.",
)
"""Ten ways to recall a fact: {s} is the phrase asked about, {y} the answer."""

N_STYLES = len(MANNERS)

LONGEST = 32
"""Tokens of the longest answer to one question, its number and the end of its line included."""


def tell(question: Question, style: int) -> str:
    """The answer to a question in one of the ten styles."""
    conclusion = CONCLUSION.format(y=question.result)
    if isinstance(question, Fact):
        return f"{RECALLS[style].format(s=question.phrase, y=question.result)} {conclusion}"
    manner = MANNERS[style]
    (first, second) = _steps(question)
    verb = manner.verb
    return f"{manner.first}, {first[0]} {verb} {first[1]}. {manner.then}, {second[0]} {verb} {second[1]}. {conclusion}"


def _steps(question: Question) -> tuple[tuple[str, str], tuple[str, str]]:
    """The two steps of a calculation, each as its expression and its result."""
    y = question.result
    if isinstance(question, Product):
        product = question.a * question.b
        return (f"{question.a} times {question.b}", str(product)), (f"{product} plus {question.c}", y)
    assert isinstance(question, Sum)
    tens = question.b - question.b % 10
    ones = question.b % 10
    half = question.a + SIGNS[question.word] * tens
    return (f"{question.a} {question.word} {tens}", str(half)), (f"{half} {question.word} {ones}", y)


def draw_question(rng: random.Random) -> Question:
    """Half arithmetic, half facts that are short enough."""
    if rng.random() < 0.5:
        return Sum.draw(rng) if rng.random() < 2 / 3 else Product.draw(rng)
    while True:
        fact = Fact.draw(rng)
        if len(pieces(tell(fact, 0))) <= LONGEST - 2:
            return fact


@dataclass(frozen=True)
class Tied(Bundle):
    """Two to five questions whose answers share one style, with a strength that the prompt names."""

    name: str = "tied"
    fewest: int = 2
    most: int = 5

    scored = (
        "the share of questions answered correctly, in one style from start to end; where the prompt asks for one "
        "style, answers that are not in the style of most of them are wrong"
    )
    graph = "tokens of one answer that change with its style; where answers share a style (meta rho > 0) all of these"

    @property
    def room(self) -> int:
        return LONGEST * self.most

    def canvas(self, example: Example) -> int:
        return LONGEST * len(example.meta["questions"])

    def draw(self, rng: random.Random) -> Example:
        rho = rng.choice(tuple(TIES))
        questions = [draw_question(rng) for _ in range(rng.randint(self.fewest, self.most))]
        shared = rng.randrange(N_STYLES)
        styles = [shared if rng.random() < rho else rng.randrange(N_STYLES) for _ in questions]
        answer = numbered(tell(question, style) for question, style in zip(questions, styles, strict=True))
        prompt = f"{TIES[rho]}\n{numbered(question.asks[0] for question in questions)}"
        return Example(self.name, prompt, answer, {"questions": list(map(to_plain, questions)), "rho": rho})

    def styles(self, example: Example, text: str) -> list[int | None]:
        """The style of each answer; None where it is wrong, or of no style."""
        questions = [from_plain(values) for values in example.meta["questions"]]
        told = [{tell(question, style): style for style in range(N_STYLES)} for question in questions]
        return [styles.get(part) for styles, part in zip(told, parts(text, len(questions)), strict=True)]

    def score(self, example: Example, text: str) -> float:
        styles = self.styles(example, text)
        if text.count("\n") >= len(styles):
            styles[-1] = None
        if example.meta["rho"] < 1:
            return sum(style is not None for style in styles) / len(styles)
        counts = Counter(style for style in styles if style is not None)
        return max(counts.values(), default=0) / len(styles)

    def edges(self, example: Example, tokens: Sequence[str]) -> set[Edge]:
        slots = [[slot for slot in own if slot < len(tokens)] for own in self.style_slots(example)]
        if example.meta["rho"] == 0:
            return {edge for own in slots for edge in clique(own)}
        return clique(slot for own in slots for slot in own)

    def style_slots(self, example: Example) -> list[list[int]]:
        """For each question, the answer's token positions that change with the style of its answer."""
        slots: list[list[int]] = []
        offset = 0
        for number, values in enumerate(example.meta["questions"], 1):
            told = [f"[{number}] {tell(from_plain(values), style)}\n" for style in range(N_STYLES)]
            slots.append([offset + i for i in varying(told)])
            offset += len(pieces(told[0]))
        return slots

    def words(self) -> Iterable[str]:
        yield from (*TIES.values(), *(f"[{i}]" for i in range(10)))
        asked: list[Question] = [*every_fact(), Sum(34, "plus", 25), Sum(78, "minus", 25), Product(3, 4, 5)]
        for question in asked:
            yield question.asks[0]
            yield from (tell(question, style) for style in range(N_STYLES))
