"""Small probabilistic grammars of finite texts. Whatever can be drawn from a grammar is accepted by it, and nothing
else is: generator and scorer of a task are one object and cannot disagree.

A node is a text, a `Choice` between nodes, or a `Chain` of nodes one after the other. Spaces are part of the texts: an
optional sentence includes the space before or after it.
"""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

from dapd.lab.tasks.base import pieces


@dataclass(frozen=True, eq=False)
class Choice:
    """One of several nodes; `upto` holds the running sums of their probabilities."""

    options: tuple[Node, ...]
    upto: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Chain:
    """Several nodes, one after the other."""

    parts: tuple[Node, ...]


Node: TypeAlias = "str | Choice | Chain"


def chain(*parts: Node) -> Chain:
    """A chain of the parts, in this order."""
    return Chain(parts)


def weighed(options: Sequence[Node], weights: Sequence[float]) -> Choice:
    """A choice between the options, drawn in proportion to their weights. Options of weight 0 are left out, so that
    they are not accepted either."""
    total = sum(weights)
    kept = [(option, weight / total) for option, weight in zip(options, weights, strict=True) if weight > 0]
    return Choice(tuple(option for option, _ in kept), tuple(accumulate(share for _, share in kept)))


def falling(*options: Node) -> Choice:
    """A choice between the options, drawn with weights 1, 1/2, 1/3, ...: some wordings are common, others rare."""
    return weighed(options, [1 / rank for rank in range(1, len(options) + 1)])


def even(*options: Node) -> Choice:
    """A choice between the options, all equally likely."""
    return weighed(options, [1.0] * len(options))


def maybe(probability: float, node: Node) -> Choice:
    """The node with this probability, and otherwise nothing."""
    return weighed((node, ""), (probability, 1 - probability))


def draw(node: Node, rng: random.Random) -> str:
    """A random text of the grammar."""
    drawn: list[str] = []
    _draw(node, rng, drawn)
    return "".join(drawn)


def _draw(node: Node, rng: random.Random, drawn: list[str]) -> None:
    """Append the texts along one random path through the grammar to `drawn`."""
    while isinstance(node, Choice):
        # The last sum may lie a rounding error below 1.
        node = node.options[min(bisect(node.upto, rng.random()), len(node.options) - 1)]
    if isinstance(node, str):
        drawn.append(node)
        return
    for part in node.parts:
        _draw(part, rng, drawn)


def accepts(node: Node, text: str) -> bool:
    """Whether the grammar can give exactly this text."""
    return len(text) in _ends(node, text, {0})


def _ends(node: Node, text: str, starts: set[int]) -> set[int]:
    """The indices in `text` at which a text of the node can end if it begins at one of `starts`."""
    if isinstance(node, str):
        return {start + len(node) for start in starts if text.startswith(node, start)}
    if isinstance(node, Choice):
        return {end for option in node.options for end in _ends(option, text, starts)}
    for part in node.parts:
        if not starts:
            break
        starts = _ends(part, text, starts)
    return starts


def leaves(node: Node) -> Iterator[str]:
    """Every text that a grammar is built of. A node that occurs in several places is visited once: a grammar with all
    orders of some parts repeats them many times."""
    seen = {node}
    left = [node]
    while left:
        node = left.pop()
        if isinstance(node, str):
            yield node
            continue
        for part in node.options if isinstance(node, Choice) else node.parts:
            if part not in seen:
                seen.add(part)
                left.append(part)


def longest(node: Node) -> int:
    """Number of tokens in the longest text of the grammar."""
    if isinstance(node, str):
        return len(pieces(node))
    if isinstance(node, Choice):
        return max(map(longest, node.options))
    return sum(map(longest, node.parts))
