"""Which rows share a forward pass, and which columns it computes and predicts. Whole numbers only, all on the host.

Rows are padded on the left, so that they end at the same column: position p of a row stands in column
`length - row.length + p` of a pass that is `length` columns long.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from dapd.decoding.row import Columns, Row
from dapd.decoding.tree import signature
from dapd.models.columns import Span, width
from dapd.strategies.base import AttentionNeed

PASS_COST = 64
"""What a pass costs besides its columns, counted in columns: rows are split where padding them would cost more."""


@dataclass(frozen=True)
class Group:
    """Rows of a pass that one call of `select` decides: equal strategies under equal settings."""

    members: tuple[Row, ...]
    """The rows in order. The last one may be repeated, so that the number of rows is one that occurs often and has a
    recording; what the repetitions give is ignored."""
    rows: slice
    """Which rows of the pass they are."""


@dataclass(frozen=True)
class PassPlan:
    """A forward pass before it starts."""

    groups: tuple[Group, ...]
    members: list[Row]
    """The rows in order, repeated ones included."""
    length: int
    """Columns of the canvas, padding included."""
    span: Span
    """The columns to compute: a slice, the same in all passes of this kind, or those of each row."""
    window: Span
    """The columns to predict, likewise."""
    attention: AttentionNeed | None

    @cached_property
    def rows(self) -> list[Row]:
        """The rows, each once."""
        return list(dict.fromkeys(self.members))

    @property
    def padded(self) -> bool:
        return any(row.length < self.length for row in self.rows)

    @property
    def rules(self) -> Hashable:
        """What is computed, whatever the shapes. Passes of equal rules and inputs of equal shapes are of one kind."""
        rules = tuple(group.members[0].rule for group in self.groups)
        return rules, self.attention, self.padded, isinstance(self.span, slice), isinstance(self.window, slice)


class Planner:
    """Plans the next pass of every row.

    Where passes are recorded, lengths are rounded up to `multiple`, and what may change from pass to pass is listed
    for each row, so that few recordings suffice. Elsewhere `multiple` is 1.
    """

    def __init__(self, multiple: int) -> None:
        self.multiple = multiple

    def passes(self, rows: Sequence[Row], pool_length: int) -> list[PassPlan]:
        """Passes that bring every row one step further; kept keys have room for `pool_length` columns."""
        return [self._plan(part, pool_length) for some in _that_may_share(rows) for part in _of_similar_width(some)]

    def _plan(self, rows: Sequence[Row], pool_length: int) -> PassPlan:
        """The pass that these rows share."""
        keeps = rows[0].keeps
        # Matrix products compute 64 rows at a time at least: a row alone may as well be a little longer.
        multiple = self.multiple if self.multiple == 1 or len(rows) > 1 else 2 * self.multiple
        length = pool_length if keeps else rounded(max(row.length for row in rows), multiple)
        groups: list[Group] = []
        members: list[Row] = []
        for alike in _by_rule(rows):
            some = self._up_to_a_usual_number(alike)
            groups.append(Group(tuple(some), slice(len(members), len(members) + len(some))))
            members += some
        span: Span = slice(0, length)
        if keeps:
            span = self._columns(members, [self._positions_to_compute(row) for row in members], length)
        return PassPlan(
            groups=tuple(groups),
            members=members,
            length=length,
            span=span,
            window=self._columns(members, [row.window for row in members], length),
            attention=next((row.needs.attention for row in rows if row.needs.attention is not None), None),
        )

    def _up_to_a_usual_number(self, rows: list[Row]) -> list[Row]:
        """The rows, with the last one repeated (and ignored later) until their number is one that occurs often.

        Each number of rows needs a recording of its own; where nothing is recorded no row is repeated.
        """
        n = len(rows)
        step = 1 if self.multiple == 1 or n <= 8 else 2 if n <= 16 else 4 if n <= 32 else 8
        return [*rows, *rows[-1:] * (rounded(n, step) - n)]

    def _positions_to_compute(self, row: Row) -> Columns:
        """A whole row is computed with padding up to a multiple, so that rows of similar length share recordings."""
        columns = row.columns()
        whole = isinstance(columns, slice) and columns == slice(0, row.length)
        return slice(row.length - rounded(row.length, self.multiple), row.length) if whole else columns

    def _columns(self, rows: Sequence[Row], positions: Sequence[Columns], length: int) -> Span:
        """The columns in which some positions of each row stand: one slice, or a list for each row.

        A slice becomes a part of what is recorded. So positions that move from block to block are listed where passes
        are recorded, even if they are the same in all rows. A list that is shorter than the others repeats its last
        column.
        """
        columns = [_shifted(one, length - row.length) for one, row in zip(positions, rows, strict=True)]
        first = columns[0]
        moves = self.multiple > 1 and any(len(row.blocks) > 1 for row in rows) and first != slice(0, length)
        if isinstance(first, slice) and all(one == first for one in columns) and not moves:
            return first
        lists = [torch.arange(one.start, one.stop) if isinstance(one, slice) else one for one in columns]
        most = rounded(max(len(one) for one in lists), self.multiple)
        return torch.stack([torch.cat((one, one[-1:].expand(most - len(one)))) for one in lists])


def rounded(number: int, multiple: int) -> int:
    """The number, rounded up to a multiple."""
    return -(-number // multiple) * multiple


def _that_may_share(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows that may share a pass: all keep keys and values or none does, and no two read different attention."""
    parts: dict[tuple[bool, AttentionNeed | None], list[Row]] = {}
    for row in rows:
        parts.setdefault((row.keeps, row.needs.attention), []).append(row)
    # Rows that read no attention join those that do.
    for keeps in (False, True):
        readers = [part for (keep, need), part in parts.items() if keep is keeps and need is not None]
        if readers:
            readers[0] += parts.pop((keeps, None), [])
    return list(parts.values())


def _of_similar_width(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows by how many columns they need: to pad a row to the width of another must cost less than another pass."""
    widths = {row: width(row.columns()) for row in rows}
    ordered = sorted(rows, key=lambda row: -widths[row])
    parts: list[list[Row]] = []
    for place, row in enumerate(ordered):
        if not parts or (widths[parts[-1][0]] - widths[row]) * (len(ordered) - place) > PASS_COST:
            parts.append([])
        parts[-1].append(row)
    return parts


def _by_rule(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows that one call of `select` can decide together: by equal rules, and with memories that can be joined."""
    groups: dict[Hashable, list[Row]] = {}
    for row in rows:
        groups.setdefault((row.rule, width(row.window), signature(row.memory)), []).append(row)
    return list(groups.values())


def _shifted(columns: Columns, by: int) -> Columns:
    return slice(columns.start + by, columns.stop + by) if isinstance(columns, slice) else columns + by
