"""Five independent questions in one prompt: which ones of TriviaQA, which five together, and how they are asked."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapd.errors import DapdError, missing_extra
from dapd.evaluation.rows import read_rows
from dapd.models.chat import Messages

FILE = "triviaqa_dpr_test.jsonl"
PER_BUNDLE = 5
BUNDLES = 500
SEED = 0

OPENERS = re.compile(r"(what|which|who|where|when)\b", re.I)
EXPLAIN = re.compile(r"(why|how)\b", re.I)
SENTENCE_ENDS = re.compile(r"[.?!][\"')\]]*\s+\S")
AMBIGUOUS = ("which of the following", "best describes", "most likely")
LONGEST = 120


@dataclass(frozen=True)
class Question:
    """A question with every answer that counts."""

    key: str
    text: str
    aliases: tuple[str, ...]


@dataclass(frozen=True)
class Bundle:
    """Questions that are asked together."""

    key: str
    questions: tuple[Question, ...]

    def messages(self) -> Messages:
        return [{"role": "user", "content": ask(self.questions)}]


def is_simple(question: str) -> bool:
    """The paper's filter: one short sentence that asks for a thing, not for an explanation or a choice.

    The paper does not say how it tells sentences apart; here a full stop, question or exclamation mark with more text
    after it makes two.
    """
    text = question.strip()
    asks = text.endswith("?") or OPENERS.match(text)
    return bool(
        asks
        and len(text) <= LONGEST
        and not EXPLAIN.match(text)
        and not SENTENCE_ENDS.search(text)
        and not any(phrase in text.lower() for phrase in AMBIGUOUS)
    )


def read_questions(folder: Path | None) -> list[Question]:
    """All questions of a TriviaQA file (question, aliases), or of the public hub, that pass the filter."""
    if folder is None:
        rows = _from_hub()
    else:
        rows = read_rows(folder / FILE if folder.is_dir() else folder, {"question": str, "aliases": list})
    return [
        Question(str(row.get("id", number)), row["question"].strip(), tuple(map(str, row["aliases"])))
        for number, row in enumerate(rows)
        if is_simple(row["question"])
    ]


def _from_hub() -> list[dict[str, Any]]:
    """The unfiltered validation questions, as the hub has them."""
    try:
        from datasets import load_dataset
    except ImportError:
        raise missing_extra("datasets", "eval", "fetching TriviaQA; or name a folder with --data-dir:") from None
    try:
        rows = load_dataset("mandarjoshi/trivia_qa", "unfiltered.nocontext", split="validation")
    except Exception as error:  # the hub client has no common base class for its failures
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DapdError(f"cannot get TriviaQA from the hub ({reason}); name a folder with --data-dir") from None
    return [
        {"id": row["question_id"], "question": row["question"], "aliases": row["answer"]["aliases"]} for row in rows
    ]


def bundles(questions: Sequence[Question], n: int = BUNDLES, seed: int = SEED) -> list[Bundle]:
    """`n` bundles of five, no question twice. The authors' own draw is not published; this one follows from the seed.

    The first bundles are the same whatever `n` is.
    """
    most = len(questions) // PER_BUNDLE
    if not 1 <= n <= most:
        raise DapdError(f"{n} bundles; the {len(questions)} questions make 1 to {most} bundles of {PER_BUNDLE}")
    order = list(questions)
    random.Random(seed).shuffle(order)
    groups = [tuple(order[PER_BUNDLE * i : PER_BUNDLE * (i + 1)]) for i in range(n)]
    return [Bundle(f"{seed}/{number}", group) for number, group in enumerate(groups)]


def ask(questions: Sequence[Question]) -> str:
    """The paper's prompt."""
    listed = "\n".join(f"[{number}] {question.text}" for number, question in enumerate(questions, 1))
    marks = ", ".join(f"[{number}]" for number in range(1, len(questions) + 1))
    return PROMPT.format(n=len(questions), marks=marks, questions=listed).strip()


PROMPT = """\
Please answer the following {n} independent questions.

Instructions:
1) Write answers in full sentence format.
2) Explain your reasoning step by step before stating the final answer.
3) Write the final answer after "Therefore, the answer is".
4) Keep the numbering format {marks}.

Here are examples showing how your answers should be written:

[Example 1]
Question: What is the smallest country in the world by area?
Answer: To determine the smallest country, we compare the land areas of sovereign states.
Although countries like Monaco and San Marino are very small, Vatican City has an area
of about 0.44 square kilometers, which is smaller than any other country.
Therefore, the answer is Vatican City.

[Example 2]
Question: How many continents are there on Earth?
Answer: Continents are large continuous landmasses. These include Africa, Antarctica,
Asia, Europe, North America, South America, and Australia.
Counting these gives a total of seven continents.
Therefore, the answer is seven.

Now answer the following questions in the same style:

{questions}
"""
