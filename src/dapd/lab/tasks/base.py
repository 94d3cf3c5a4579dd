"""What a task is: a generator of prompts with answers, an exact scorer, and the true graph where there is one."""

from __future__ import annotations

import random
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import combinations
from typing import Any

Edge = tuple[int, int]
"""Two positions of an answer, the smaller one first."""

PIECE = r"\[[0-9]\]| ?[A-Za-z]+| ?[0-9]|\n(?: {4})+|\n\n|\n| ?(?:[=!<>+*]=|\*\*)| ?[^\sA-Za-z0-9]"
"""Regular expression for the tokens of a text: words, single digits and signs, each with the space before it. A label
such as `[1]`, a newline with the indentation after it, and the longer operators of Python are one token each."""

_PIECE = re.compile(PIECE)

TEST_SHARE = 16
"""One prompt in this many belongs to the test split."""


class Split(StrEnum):
    """Which side of the split a prompt lies on; its text alone decides, so that no prompt can be on both."""

    TRAIN = "train"
    TEST = "test"

    @classmethod
    def of(cls, prompt: str) -> Split:
        return cls.TEST if zlib.crc32(prompt.encode()) % TEST_SHARE == 0 else cls.TRAIN


@dataclass(frozen=True)
class Example:
    """One prompt with one of its right answers."""

    task: str
    prompt: str
    answer: str
    meta: Mapping[str, Any] = field(default_factory=dict)
    """Facts about the prompt that the scorer needs, as plain values."""


class Task(ABC):
    """A family of prompts. `draw` is the generator; `make` draws until the prompt lies in the requested split."""

    name: str

    @property
    @abstractmethod
    def scored(self) -> str:
        """The meaning of the score, in one line."""

    @property
    @abstractmethod
    def graph(self) -> str | None:
        """The meaning of the true edges, in one line; None where the graph is not known."""

    @property
    @abstractmethod
    def room(self) -> int:
        """Number of new tokens to decode, into which any answer and its end token fit."""

    def canvas(self, example: Example) -> int:
        """Number of new tokens into which any answer to this prompt and its end token fit; never more than `room`."""
        return self.room

    @abstractmethod
    def draw(self, rng: random.Random) -> Example: ...

    @abstractmethod
    def score(self, example: Example, text: str) -> float:
        """1 for any right answer, 0 for a wrong one; the share of right parts where an answer has parts."""

    @abstractmethod
    def words(self) -> Iterable[str]:
        """Texts that together hold every word of the prompts and answers."""

    def edges(self, example: Example, tokens: Sequence[str]) -> set[Edge] | None:
        """Pairs of answer positions that depend on each other, because one choice changes both or one constraint ties
        them; None: not known."""
        return None

    def examples(self, n: int, seed: int = 0, split: Split = Split.TEST) -> list[Example]:
        """Prompts of a split, the same for the same seed."""
        return [self.make(random.Random(f"{split}/{self.name}/{seed}/{i}"), split) for i in range(n)]

    def make(self, rng: random.Random, split: Split = Split.TRAIN) -> Example:
        while True:
            example = self.draw(rng)
            if Split.of(example.prompt) is split:
                return example


def pieces(text: str) -> list[str]:
    """The tokens of a text, as strings."""
    return _PIECE.findall(text)


def clique(positions: Iterable[int]) -> set[Edge]:
    """All pairs of the positions."""
    return set(combinations(sorted(positions), 2))


def varying(realisations: Sequence[str]) -> list[int]:
    """Token positions at which equally long wordings of one text differ."""
    return [i for i, column in enumerate(zip(*map(pieces, realisations), strict=True)) if len(set(column)) > 1]
