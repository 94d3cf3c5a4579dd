"""ParallelBench's scores: the rules are its own, the code is ours. Every score is a set of parts and a total in 0..1.

A part that needs a tool which is not installed is None, and so is the total: nothing stands in for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from dapd.errors import DapdError, unknown
from dapd.evaluation.parallelbench.data import Answer
from dapd.evaluation.parallelbench.text import Tools, bleu, rouge_l

Parts = dict[str, float | None]
"""`score` is the total; the other names are its parts, or a stricter reading."""


def parse_list(text: str) -> list[str]:
    """The loose reading: what follows the last `[`, up to the next `]`, cut at commas, quotes and blanks stripped.

    A part without anything in it, as after a last comma, is no item; a part of empty quotes is an empty item, which
    makes the list wrong. The public scorer does the same, and like it this one leaves line ends in the items.
    """
    *_, tail = text.split("[")
    parts = tail.split("]", 1)[0].split(",")
    return [part.strip(' "') for part in parts if part.strip()]


def parse_list_strictly(text: str) -> list[str] | None:
    """The strict reading of the same list: `["a", "b"]`, closed, every item in double quotes, one blank after commas.

    None where the text is not written like that.
    """
    _, opening, rest = text.rpartition("[")
    inner, closing, _ = rest.partition("]")
    items = inner.split(", ")
    # A quote alone begins and ends with a quote: the public scorer takes it for an empty item.
    if not opening or not closing or not all(re.fullmatch(r'"|"[^"]*"', item) for item in items):
        return None
    return [item[1:-1] for item in items]


def matches(items: list[str], answer: Answer) -> bool:
    return items == parse_list(_text(answer))


def shuffled(items: list[str], answer: Answer) -> bool:
    before = _field(answer, "input")
    return sorted(items) == sorted(before) and items != before


def inserted(items: list[str], answer: Answer) -> bool:
    """Whether the list has the new word somewhere and is otherwise the same."""
    before = _field(answer, "input")
    word = _field(answer, "word")
    if word not in items:
        return False
    place = items.index(word)
    return bool(items[:place] + items[place + 1 :] == before)


def removed(items: list[str], answer: Answer) -> bool:
    """Whether the list lacks one of its items and is otherwise the same. Nothing equal to that item may be left: of two
    equal items, taking out one counts as wrong."""
    before = _field(answer, "input")
    missing = set(before) - set(items)
    if len(missing) != 1:
        return False
    place = before.index(missing.pop())
    return bool(items == before[:place] + before[place + 1 :])


def replaced(items: list[str], answer: Answer) -> bool:
    """Whether the list has the new word in the place of one item."""
    before = _field(answer, "input")
    word = _field(answer, "word")
    if len(items) != len(before) or word not in items:
        return False
    place = items.index(word)
    return items == [*before[:place], word, *before[place + 1 :]]


def _of_lists(right: Callable[[list[str], Answer], bool]) -> Callable[[str, Answer, Tools], Parts]:
    def score(text: str, answer: Answer, tools: Tools) -> Parts:
        strict = parse_list_strictly(text)
        return {
            "score": float(right(parse_list(text), answer)),
            "strict": float(strict is not None and right(strict, answer)),
        }

    return score


def latin_square(text: str, answer: Answer, tools: Tools) -> Parts:
    """Score the first rows that hold exactly the symbols, as many as there are symbols; columns must hold them, too.

    A row may repeat a symbol after the others: the public scorer looks at as many columns as the shortest row has.
    """
    symbols = set(_field(answer, "symbols"))
    first = answer.get("first_row") if isinstance(answer, Mapping) else None
    rows = [[cell.strip() for cell in line.split(",")] for line in text.split("\n")]
    square = [row for row in rows if set(row) == symbols][: len(symbols)]
    complete = len(square) == len(symbols) and all(set(column) == symbols for column in zip(*square, strict=False))
    return {"score": float(complete and first in (None, square[0]))}


SIDE = 4


def sudoku(text: str, answer: Answer, tools: Tools) -> Parts:
    """Score the four rows of the solution. Loosely, only the digits count, and lines without four of them are skipped.

    Digits are read by their value, in whatever script they are written.
    """
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    rows = [[int(digit) for digit in re.findall(r"\d", line)] for line in lines]
    solution = [[int(digit) for digit in row] for row in _text(answer).split()]
    strict = all(re.fullmatch(r"\d+", line) for line in lines) and rows == solution
    return {"score": float([row for row in rows if len(row) == SIDE] == solution), "strict": float(strict)}


def words_to_sentence(text: str, answer: Answer, tools: Tools) -> Parts:
    """Score a text: it must hold all words, letter for letter, and the grammar checker must find no fault with it."""
    inclusion = float(all(word in text for word in _field(answer, "words")))
    grammar = tools.grammar(text)
    return {"inclusion": inclusion, "grammar": grammar, "score": _product(inclusion, grammar)}


def summary(text: str, answer: Answer, tools: Tools) -> Parts:
    overlap = rouge_l(text.strip(), _field(answer, "summary").strip())
    grammar = tools.grammar(text)
    return {"rouge_l": overlap, "grammar": grammar, "score": _product(overlap, grammar)}


def paraphrase(text: str, answer: Answer, tools: Tools) -> Parts:
    """Score a text by its distance from the original's words, its nearness to the original's meaning, and grammar."""
    text = text.strip()
    source = _field(answer, "text")
    if not text:
        return {"novelty": 0.0, "bertscore": 0.0, "grammar": 0.0, "score": 0.0}
    novelty = 1 - bleu(text, source)
    meaning = tools.bertscore(text, source)
    grammar = tools.grammar(text)
    return {"novelty": novelty, "bertscore": meaning, "grammar": grammar, "score": _product(novelty, meaning, grammar)}


METRICS: dict[str, Callable[[str, Answer, Tools], Parts]] = {
    "list_match_score": _of_lists(matches),
    "list_shuffle_score": _of_lists(shuffled),
    "list_random_insert_score": _of_lists(inserted),
    "list_random_remove_score": _of_lists(removed),
    "list_random_replace_score": _of_lists(replaced),
    "latin_square_score": latin_square,
    "sudoku_score": sudoku,
    "sentence_to_words_score": words_to_sentence,
    "summary_score": summary,
    "paraphrase_score": paraphrase,
}
"""The scorer of each metric, by the name that the task files use."""

EXACT = tuple(name for name in METRICS if name.startswith("list") or name in ("latin_square_score", "sudoku_score"))
"""The metrics that need no outside tool."""


def score(metric: str, text: str, answer: Answer, tools: Tools) -> Parts:
    """The parts of an answer's score."""
    if metric not in METRICS:
        raise unknown("ParallelBench metric", metric, METRICS)
    return METRICS[metric](text, answer, tools)


def _product(*parts: float | None) -> float | None:
    """The product; unknown where a factor is unknown, unless another one is 0 already."""
    known = [part for part in parts if part is not None]
    if 0.0 in known:
        return 0.0
    if len(known) < len(parts):
        return None
    total = 1.0
    for part in known:
        total *= part
    return total


def _text(answer: Answer) -> str:
    if not isinstance(answer, str):
        raise DapdError(f"an answer must be text here; this one has the fields {', '.join(answer)}")
    return answer


def _field(answer: Answer, name: str) -> Any:
    if not isinstance(answer, Mapping) or name not in answer:
        raise DapdError(f"an answer lacks the field {name!r}, which its score needs")
    return answer[name]
