"""A finite automaton over tokens. Tokens that lead from every state to the same state form one class.

There are far fewer classes than tokens, and the search for the best text looks at classes alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
START = 0


@dataclass(frozen=True)
class Automaton:
    """States 0 (the start) to `n_states` - 1 (the end), and edges between them.

    Edge e leads from state `source[e]` to state `target[e]` by any token of class `kind[e]`; edges are sorted by their
    target. EOS alone leads to the end, and only EOS can follow there.
    """

    n_states: int
    source: Ints
    kind: Ints
    """The class of tokens that each edge takes."""
    target: Ints
    kind_of: Ints
    """The class of each token of the vocabulary; tokens that no edge takes are in the last class."""
    accepting: Ints
    """States in which the text may end, the end itself included."""

    @classmethod
    def of(cls, raw: dict[str, Any], vocab_size: int, ends: list[int]) -> Automaton:
        """Make an automaton from the worker's transitions (state, token, next state), merging tokens into classes.

        `ends` are the tokens that end a text.
        """
        names, places = np.unique(
            np.concatenate((raw["start"].reshape(1), raw["source"], raw["target"], raw["accepting"])),
            return_inverse=True,
        )
        n = len(names)
        n_edges = len(raw["source"])
        # The start is to be state 0: it changes places with whatever sorts first.
        order = np.arange(n)
        order[[0, places[0]]] = order[[places[0], 0]]
        state = order[places]
        source, target = state[1 : 1 + n_edges], state[1 + n_edges : 1 + 2 * n_edges]
        accepting = state[1 + 2 * n_edges :]
        kind_of, sample = _classes(source * n + target, raw["token"], vocab_size)
        n_kinds = len(sample)
        first = np.isin(raw["token"], sample)
        end_kind = n_kinds
        end = n
        kind_of[kind_of < 0] = n_kinds + 1
        kind_of[ends] = end_kind
        stops = np.append(accepting, end)
        source = np.concatenate((source[first], stops))
        kind = np.concatenate((kind_of[raw["token"][first]], np.full(len(stops), end_kind)))
        target = np.concatenate((target[first], np.full(len(stops), end)))
        by_target = np.argsort(target, kind="stable")
        return cls(n + 1, source[by_target], kind[by_target], target[by_target], kind_of, stops)

    @property
    def n_kinds(self) -> int:
        """Number of classes of tokens, the one that no edge takes included."""
        return int(self.kind_of.max(initial=0)) + 1 if len(self.kind_of) else 1

    @cached_property
    def is_single(self) -> npt.NDArray[np.bool_]:
        """For each class, whether it holds a single token."""
        single: npt.NDArray[np.bool_] = np.bincount(self.kind_of, minlength=self.n_kinds) == 1
        return single

    @cached_property
    def _groups(self) -> tuple[Ints, Ints]:
        """The index of the first edge into each target, and the targets."""
        targets, begin = np.unique(self.target, return_index=True)
        return begin.astype(np.int64), targets

    @cached_property
    def _bounds(self) -> list[int]:
        """The first edge into each state, and after the last state the number of edges."""
        bounds: list[int] = np.searchsorted(self.target, np.arange(self.n_states + 1)).tolist()
        return bounds

    def advance(self, best: Floats, scores: Floats) -> Floats:
        """The best sum of scores that reaches each state with one more token.

        `best` holds the best sum of each state before that token, `scores` the token's score for each class.
        """
        begin, targets = self._groups
        out = np.full(self.n_states, -np.inf)
        if len(begin):
            out[targets] = np.maximum.reduceat(best[self.source] + scores[self.kind], begin)
        return out

    def edge_into(self, state: int, best: Floats, scores: Floats) -> tuple[int, int]:
        """The source and the class of the best edge into a state, from which `advance` took its value."""
        low, high = self._bounds[state], self._bounds[state + 1]
        edge = low + int(np.argmax(best[self.source[low:high]] + scores[self.kind[low:high]]))
        return int(self.source[edge]), int(self.kind[edge])

    @cached_property
    def shortest(self) -> int | None:
        """Number of tokens of the shortest text; None where there is no text.

        The search goes backwards from the states in which a text may end and looks at every edge once, because forms
        may have a million states, such as `a{1000000}`.
        """
        bounds, sources = self._bounds, self.source.tolist()
        reached: set[int] = set(self.accepting.tolist())
        nearest, length = reached, 0
        while nearest and START not in nearest:
            before = {source for state in nearest for source in sources[bounds[state] : bounds[state + 1]]}
            nearest = before - reached
            reached |= nearest
            length += 1
        return length if nearest else None


def _classes(moves: Ints, token: Ints, vocab_size: int) -> tuple[Ints, Ints]:
    """The class of each token by the moves that it makes (-1: it makes none), and one token of each class.

    A move gets two pseudo-random numbers of 64 bits, and tokens with equal sums of both count as one class: with 128
    bits no two different sets of moves are expected to agree.
    """
    sums = np.zeros((2, vocab_size), dtype=np.uint64)
    for row, salt in enumerate((0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)):
        np.add.at(sums[row], token, _mixed(moves.astype(np.uint64) + np.uint64(salt)))
    used = np.unique(token)
    _, sample, inverse = np.unique(sums[:, used], axis=1, return_index=True, return_inverse=True)
    kind_of = np.full(vocab_size, -1, dtype=np.int64)
    kind_of[used] = inverse.reshape(-1)
    return kind_of, used[sample]


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of splitmix64: every bit depends on every other."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
