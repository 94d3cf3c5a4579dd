"""Bundles: several independent questions in one prompt, answered line by line as `[1] ...`, `[2] ...`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from dapd.errors import DapdError
from dapd.lab.tasks.base import Task


@dataclass(frozen=True)
class Bundle(Task):
    """A task with `fewest` to `most` questions in every prompt. Subclasses define the questions and the answers."""

    name: str
    fewest: int
    most: int

    def of(self, n_questions: int) -> Self:
        """The same task with a fixed number of questions in every prompt."""
        if not self.fewest <= n_questions <= self.most:
            missing = f"{self.name}-{n_questions}"
            raise DapdError(f"task {self.name} has {self.fewest} to {self.most} questions, so {missing} does not exist")
        return dataclasses.replace(self, name=f"{self.name}-{n_questions}", fewest=n_questions, most=n_questions)


def numbered(lines: Iterable[str]) -> str:
    """The lines as one text, each after its number in brackets."""
    return "\n".join(f"[{number}] {line}" for number, line in enumerate(lines, 1))


def parts(text: str, n_questions: int) -> Sequence[str]:
    """The answers after `[1] `, `[2] `, ..., in order; an empty one where an answer is missing or out of place."""
    lines = text.split("\n")
    answers = [""] * n_questions
    for place, line in enumerate(lines[:n_questions]):
        number = f"[{place + 1}] "
        if line.startswith(number):
            answers[place] = line.removeprefix(number)
    return answers
