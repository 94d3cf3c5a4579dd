"""Bundles of independent questions, answered one after the other as `[1] ... Therefore, the answer is ...`.

Three tasks: `bundle` (each answer in a style of its own), `tied` (a ladder of dependency: the answers share their style
with a strength that the prompt names) and `loose` (openings of any length: the places of later answers are open).
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from dapd.errors import DapdError
from dapd.lab.tasks.base import Edge, Example, Task, clique, pieces, varying
from dapd.lab.tasks.questions import N_STYLES, Question, draw_question, from_plain, question_words, to_plain

ASK = "Answer each question."

TIES = {
    0.0: "Answer each question in any style.",
    0.5: "Answer each question in mostly one style.",
    1.0: "Answer each question in one style.",
}
"""Tie strength -> how the prompt says it: each answer takes the shared style with that probability, else its own."""

LOOSE = "Answer each question in free form."

LONGEST = 31
"""Tokens of the longest answer to one question, its number and the end of its line included."""

OPENINGS = (
    "",
    "Sure.",
    "Good question.",
    "Let me see.",
    "This one is easy.",
    "I know this one well.",
    "Let me think about it here.",
    "Here is one that I do know.",
)
"""Openings of 0 to 8 tokens."""


def _prompt(ask: str, questions: Sequence[Question]) -> str:
    return "\n".join([ask, *(f"[{i}] {question.ask()}" for i, question in enumerate(questions, 1))])


def _answer(told: Iterable[str]) -> str:
    return "\n".join(f"[{i}] {text}" for i, text in enumerate(told, 1))


def _parts(text: str, n_questions: int) -> list[str]:
    """What stands after `[1] `, `[2] `, ...; empty for an answer that is not there or is out of place."""
    lines = text.split("\n")
    starts = [f"[{i}] " for i in range(1, n_questions + 1)]
    parts = [
        line.removeprefix(start) if line.startswith(start) else "" for start, line in zip(starts, lines, strict=False)
    ]
    return parts + [""] * (n_questions - len(parts))


@dataclass(frozen=True)
class Bundle(Task):
    """`fewest` to `most` independent questions, each answered in one of ten styles."""

    name: str = "bundle"
    fewest: int = 1
    most: int = 8

    scored = "the share of questions answered correctly, steps included, in one style from start to end"
    graph: ClassVar[str | None] = "tokens of one answer that change with its style"

    @property
    def room(self) -> int:
        return 32 * math.ceil(LONGEST * self.most / 32)

    def of(self, n_questions: int) -> Bundle:
        """The same task with a fixed number of questions in every prompt."""
        if not self.fewest <= n_questions <= self.most:
            missing = f"{self.name}-{n_questions}"
            raise DapdError(f"task {self.name} has {self.fewest} to {self.most} questions, so {missing} does not exist")
        return dataclasses.replace(self, name=f"{self.name}-{n_questions}", fewest=n_questions, most=n_questions)

    def draw(self, rng: random.Random) -> Example:
        questions = self._questions(rng)
        answer = _answer(question.tell(rng.randrange(N_STYLES)) for question in questions)
        return Example(self.name, _prompt(ASK, questions), answer, {"questions": list(map(to_plain, questions))})

    def _questions(self, rng: random.Random) -> list[Question]:
        return [draw_question(rng) for _ in range(rng.randint(self.fewest, self.most))]

    def styles(self, example: Example, text: str) -> list[int | None]:
        """The style of each answer; None where it is wrong, or of no style."""
        questions = list(map(from_plain, example.meta["questions"]))
        told = [{question.tell(style): style for style in range(N_STYLES)} for question in questions]
        return [styles.get(part) for styles, part in zip(told, _parts(text, len(questions)), strict=True)]

    def score(self, example: Example, text: str) -> float:
        styles = self.styles(example, text)
        return sum(style is not None for style in styles) / len(styles)

    def edges(self, example: Example, tokens: Sequence[str]) -> set[Edge] | None:
        return {edge for slots in self.style_slots(example) for edge in clique(slots) if edge[1] < len(tokens)}

    def style_slots(self, example: Example) -> list[list[int]]:
        """For each question, the answer's token positions that change with the style of its answer."""
        slots: list[list[int]] = []
        offset = 0
        for number, values in enumerate(example.meta["questions"], 1):
            told = [f"[{number}] {from_plain(values).tell(style)}\n" for style in range(N_STYLES)]
            slots.append([offset + i for i in varying(told)])
            offset += len(pieces(told[0]))
        return slots

    def words(self) -> Iterable[str]:
        return [ASK, *(f"[{i}]" for i in range(10)), *question_words()]


@dataclass(frozen=True)
class Tied(Bundle):
    """A bundle whose answers share one style, with a strength that the prompt names."""

    name: str = "tied"
    fewest: int = 2
    most: int = 5

    scored = "as bundle; where the prompt asks for one style, answers in another style than the commonest are wrong"
    graph = "as bundle, and across the answers where they share a style (meta rho > 0)"

    def draw(self, rng: random.Random) -> Example:
        rho = rng.choice(tuple(TIES))
        questions, shared = self._questions(rng), rng.randrange(N_STYLES)
        styles = [shared if rng.random() < rho else rng.randrange(N_STYLES) for _ in questions]
        answer = _answer(question.tell(style) for question, style in zip(questions, styles, strict=True))
        meta = {"questions": list(map(to_plain, questions)), "rho": rho}
        return Example(self.name, _prompt(TIES[rho], questions), answer, meta)

    def score(self, example: Example, text: str) -> float:
        styles = self.styles(example, text)
        if example.meta["rho"] < 1:
            return sum(style is not None for style in styles) / len(styles)
        counts = Counter(style for style in styles if style is not None)
        return max(counts.values(), default=0) / len(styles)

    def edges(self, example: Example, tokens: Sequence[str]) -> set[Edge] | None:
        if example.meta["rho"] == 0:
            return super().edges(example, tokens)
        slots = [slot for own in self.style_slots(example) for slot in own if slot < len(tokens)]
        return clique(slots)

    def words(self) -> Iterable[str]:
        return [*TIES.values(), *question_words()]


@dataclass(frozen=True)
class Loose(Bundle):
    """A bundle whose answers begin with an opening of any length: where an answer stands depends on those before it."""

    name: str = "loose"
    fewest: int = 1
    most: int = 5

    scored = "as bundle, any opening (or none) before each answer"
    graph = None

    @property
    def room(self) -> int:
        return super().room + 8 * self.most + 8

    def draw(self, rng: random.Random) -> Example:
        questions = self._questions(rng)
        told = [f"{rng.choice(OPENINGS)} {q.tell(rng.randrange(N_STYLES))}".lstrip() for q in questions]
        return Example(
            self.name, _prompt(LOOSE, questions), _answer(told), {"questions": list(map(to_plain, questions))}
        )

    def styles(self, example: Example, text: str) -> list[int | None]:
        parts = _parts(text, len(example.meta["questions"]))
        bare = [next((p.removeprefix(f"{o} ") for o in OPENINGS[1:] if p.startswith(f"{o} ")), p) for p in parts]
        return super().styles(example, _answer(bare))

    def edges(self, example: Example, tokens: Sequence[str]) -> None:
        return None

    def words(self) -> Iterable[str]:
        return [LOOSE, *OPENINGS, *question_words()]
