"""Which of the five answers are right: segments are found by marks, answers by a phrase, matches by substring."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dapd.evaluation.multi_question.questions import Question

PHRASES = ("therefore, the answer is", "the answer is")


def segments(text: str, n: int) -> list[str]:
    """The text after each mark [1]..[n], up to the next mark; empty where a mark is missing.

    A mark counts where it first appears after the mark before it, so that a number in brackets within an answer does
    not start a new one.
    """
    starts: list[tuple[int, int] | None] = []
    at = 0
    for number in range(1, n + 1):
        mark = text.find(f"[{number}]", at)
        starts.append(None if mark < 0 else (mark, mark + len(f"[{number}]")))
        at = mark + 1 if mark >= 0 else at
    out = []
    for place, start in enumerate(starts):
        if start is None:
            out.append("")
            continue
        later = [other[0] for other in starts[place + 1 :] if other is not None]
        out.append(text[start[1] : later[0] if later else len(text)])
    return out


def answer_of(segment: str) -> str:
    """The text after the last "Therefore, the answer is", else the last "The answer is", else all of the segment."""
    # Not segment.lower(): some letters change their length, and positions would no longer agree.
    for phrase in PHRASES:
        matches = list(re.finditer(re.escape(phrase), segment, re.I))
        if matches:
            return segment[matches[-1].end() :]
    return segment


def is_right(segment: str, question: Question) -> bool:
    """Whether the answer contains one of the question's right answers, in upper or lower case."""
    answer = answer_of(segment).lower()
    return any(alias.strip() and alias.strip().lower() in answer for alias in question.aliases)


def score(text: str, questions: Sequence[Question]) -> list[bool]:
    """One verdict per question. Without any mark there is nothing to tell the answers apart by: all count as wrong."""
    parts = segments(text, len(questions))
    return [is_right(part, question) for part, question in zip(parts, questions, strict=True)]
