"""A task of the user's own: prompts and answers in a file of JSON lines."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dapd.errors import DapdError
from dapd.evaluation.rows import Row, read_rows
from dapd.io.wording import plural
from dapd.lab.tasks import Example, Split, Task

MATCHES = ("exact", "contains")


@dataclass(frozen=True)
class FileTask(Task):
    """Rows with `prompt` and `answer` (or several `answers`, any of which is right), and `match`.

    A text is right if it equals an answer except for white space (`exact`, the default), or contains one (`contains`).
    """

    path: Path
    new_tokens: int
    """How many tokens an answer may have."""
    whole: bool = False
    """Whether a file with fewer prompts than are asked for is accepted."""

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.path.name

    @property
    def room(self) -> int:
        return self.new_tokens

    scored = "whether the text is one of the answers, or has one in it"
    graph = None

    def examples(self, n: int, seed: int = 0, split: Split = Split.TEST) -> list[Example]:
        """The first rows of the file, whatever the seed."""
        rows = read_rows(self.path, {"prompt": str})
        if n > len(rows) and not self.whole:
            raise DapdError(
                f"{self.path} has {plural(len(rows), 'prompt')}, and {n} were asked for; give --prompts {len(rows)}"
            )
        return [self._example(row, number) for number, row in enumerate(rows[:n], 1)]

    def _example(self, row: Row, number: int) -> Example:
        where = f"{self.path}, prompt {number}"
        answers = row.get("answers", [row["answer"]] if "answer" in row else [])
        if not isinstance(answers, list) or not answers or not all(isinstance(one, str) for one in answers):
            raise DapdError(f'{where}: no answer; "answer" is a text, "answers" a list of texts')
        match = row.get("match", "exact")
        if match not in MATCHES:
            raise DapdError(f"{where}: match is {match!r}; allowed: {', '.join(MATCHES)}")
        return Example(self.name, row["prompt"], answers[0], {"answers": answers, "match": match})

    def score(self, example: Example, text: str) -> float:
        words = " ".join(text.split())
        answers = [" ".join(answer.split()) for answer in example.meta["answers"]]
        return float(words in answers if example.meta["match"] == "exact" else any(one in words for one in answers))

    def draw(self, rng: random.Random) -> Example:
        raise DapdError(f"{self.path} is a list of prompts; none can be drawn")

    def words(self) -> Iterable[str]:
        return ()
