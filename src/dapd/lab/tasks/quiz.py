"""`quiz`: several questions at once, answered in free form. The task that most resembles what people ask models.

Wordings have any length and share words, so at first everything about the text is open: which words it has, where they
stand, where it ends. Answers to different questions are independent but for one thing: where one of them begins depends
on how long those before it are.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from dapd.lab.tasks.base import Example, pieces
from dapd.lab.tasks.bundle import Bundle, numbered, parts
from dapd.lab.tasks.grammar import accepts, draw
from dapd.lab.tasks.questions import answers, draw_question, from_plain, question_words, to_plain

ASK_ONE = "Answer this question in your own words."
ASK = "Answer these questions in your own words."

LONGEST_CANVAS = 256


def canvas_for(n_questions: int) -> int:
    """Length of the canvas in tokens. A third of it stays empty on average, so that the place where the text ends is
    not known in advance."""
    return min(LONGEST_CANVAS, 32 * (n_questions + 1))


@dataclass(frozen=True)
class Quiz(Bundle):
    """One to eight questions, each answered in any of a few thousand ways."""

    name: str = "quiz"
    fewest: int = 1
    most: int = 8

    scored = "the share of questions answered correctly: every number, every fact and every word of the wording"
    graph: ClassVar[str | None] = None

    @property
    def room(self) -> int:
        return canvas_for(self.most)

    def canvas(self, example: Example) -> int:
        return canvas_for(len(example.meta["questions"]))

    def draw(self, rng: random.Random) -> Example:
        questions = [draw_question(rng) for _ in range(rng.randint(self.fewest, self.most))]
        asked = numbered(rng.choice(question.asks) for question in questions)
        answer = numbered(draw(answers(question), rng) for question in questions)
        # Several long answers may be too long for the canvas; all of them are then drawn again.
        while len(pieces(answer)) >= canvas_for(len(questions)):
            answer = numbered(draw(answers(question), rng) for question in questions)
        prompt = f"{ASK if len(questions) > 1 else ASK_ONE}\n{asked}"
        return Example(self.name, prompt, answer, {"questions": list(map(to_plain, questions))})

    def score(self, example: Example, text: str) -> float:
        questions = [from_plain(values) for values in example.meta["questions"]]
        told = parts(text, len(questions))
        right = [accepts(answers(question), part) for question, part in zip(questions, told, strict=True)]
        # Further lines after the last answer make that answer wrong.
        if text.count("\n") >= len(questions):
            right[-1] = False
        return sum(right) / len(right)

    def words(self) -> Iterable[str]:
        yield from (ASK_ONE, ASK, *(f"[{i}]" for i in range(10)))
        yield from question_words()
