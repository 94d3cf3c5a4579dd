"""Grammars of finite texts: what is drawn is accepted, what is accepted can be drawn, and nothing else."""

from __future__ import annotations

import random
from itertools import product

import pytest

from dapd.lab.tasks import pieces
from dapd.lab.tasks.grammar import (
    Choice,
    Node,
    accepts,
    chain,
    draw,
    even,
    falling,
    leaves,
    longest,
    maybe,
    weighed,
)

PLACES = even("here", chain("here", " and ", even("now", "there")), "now")
GRAMMAR = chain(falling("", "Sure. "), even("It is ", "It is not "), PLACES, maybe(0.5, "."))


def every_text(node: Node) -> set[str]:
    """The slow and obvious version: all texts of a grammar, written out."""
    if isinstance(node, str):
        return {node}
    if isinstance(node, Choice):
        return {text for option in node.options for text in every_text(option)}
    return {"".join(parts) for parts in product(*map(every_text, node.parts))}


def test_all_texts_are_accepted_and_drawn() -> None:
    texts = every_text(GRAMMAR)
    assert len(texts) == 32
    assert all(accepts(GRAMMAR, text) for text in texts)
    rng = random.Random(0)
    assert {draw(GRAMMAR, rng) for _ in range(2000)} == texts


def test_other_texts_are_not() -> None:
    texts = every_text(GRAMMAR)
    for text in texts:
        for at in range(len(text)):
            cut = text[:at] + text[at + 1 :]
            assert accepts(GRAMMAR, cut) == (cut in texts)
        assert not accepts(GRAMMAR, text + " ")
    assert not accepts(GRAMMAR, "")
    assert accepts("", "")


def test_ambiguous_beginnings_are_all_followed() -> None:
    node = chain(even("a", "ab"), even("bc", "c"), "d")
    assert all(accepts(node, text) for text in ("abcd", "acd", "abbcd"))
    assert not accepts(node, "abd")


def test_weights_fall() -> None:
    rng = random.Random(1)
    drawn = [draw(falling("a", "b", "c"), rng) for _ in range(6000)]
    shares = [drawn.count(letter) / len(drawn) for letter in "abc"]
    assert shares == pytest.approx([6 / 11, 3 / 11, 2 / 11], abs=0.03)
    drawn = [draw(weighed(("a", "b"), (3.0, 1.0)), rng) for _ in range(6000)]
    assert drawn.count("a") / len(drawn) == pytest.approx(0.75, abs=0.03)


def test_leaves_and_longest() -> None:
    assert set(leaves(GRAMMAR)) == {"", "Sure. ", "It is ", "It is not ", "here", "now", "there", " and ", "."}
    assert longest(GRAMMAR) == max(len(pieces(text)) for text in every_text(GRAMMAR))
