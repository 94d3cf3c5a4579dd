"""Which rows share a forward pass, and which columns it computes and predicts. Whole numbers only, all on the host.

Rows are padded on the left, so that they end at the same column: position p of a row stands in column
`length - row.length + p` of a pass that is `length` columns long.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from dapd.decoding.options import Reuse
from dapd.decoding.row import Row
from dapd.models.columns import Span, width
from dapd.sampling import Sampling
from dapd.strategies.base import AttentionNeed, Precision, Selects

PASS_COST = 64
"""What a pass costs besides its columns, counted in columns: rows are split where padding them would cost more."""


@dataclass(frozen=True)
class Group:
    """Rows of a pass that one call of `select` decides: equal strategies under equal settings."""

    strategy: Selects
    sampling: Sampling
    precision: Precision
    edges: bool
    """Whether the dependency graph is kept."""
    rows: slice
    """Which rows of the pass they are."""
    width: int
    """Columns that the strategy sees of each row."""


@dataclass(frozen=True)
class Plan:
    """What all passes of one kind have in common: one recording serves them all."""

    length: int
    """Columns of the canvas, padding included."""
    span: slice | None
    """The columns to compute; None: `Inputs.span` names those of each row."""
    window: slice | None
    """The columns to predict; None: `Inputs.window` names those of each row."""
    padded: bool
    attention: AttentionNeed | None
    groups: tuple[Group, ...]

    @property
    def rules(self) -> Hashable:
        """What is computed, whatever the shapes."""
        rules = tuple((group.strategy, group.sampling, group.precision, group.edges) for group in self.groups)
        return rules, self.attention, self.padded, self.span is None, self.window is None

    @property
    def key(self) -> Hashable:
        """What tells two kinds of passes apart. (In Python 3.11 slices have no hash.)"""
        places = tuple((repr(group.rows), group.width) for group in self.groups)
        return self.rules, self.length, repr(self.span), repr(self.window), places


@dataclass(frozen=True)
class Outcome:
    """What came of a pass for the rows of a group."""

    commit: Bool[Tensor, "g n"]
    token: Int[Tensor, "g n"]
    confidence: Float[Tensor, "g n"]
    edges: Bool[Tensor, "g n n"] | None


@dataclass(frozen=True)
class GroupInputs:
    """What differs from pass to pass for the rows of a group."""

    choices: Bool[Tensor, "g n"]
    """Positions that may be committed."""
    start: Int[Tensor, " g"]
    """Position of the first column that the strategy is shown."""
    window: Int[Tensor, "g 2"]
    """First position of the window, and the one behind its last."""
    block: Int[Tensor, "g 2"]
    """First position of the active block, and the one behind its last."""
    counts: Int[Tensor, "5 g"]
    """The numbers of `Progress`, in order."""


@dataclass(frozen=True)
class Inputs:
    """What differs from pass to pass."""

    tokens: Int[Tensor, "b length"]
    padding: Int[Tensor, " b"]
    """Columns of padding before each row."""
    span: Int[Tensor, "b s"] | None
    window: Int[Tensor, "b n"] | None
    places: Int[Tensor, " b"] | None
    """Each row's place among the kept keys and values; None: all places in order, or nothing is kept."""
    groups: tuple[GroupInputs, ...]

    def after(self, plan: Plan, outcomes: Sequence[Outcome]) -> None:
        """Make these the inputs of the next pass, if that has the same form: the tokens committed, the masks fewer."""
        for group, given, outcome in zip(plan.groups, self.groups, outcomes, strict=True):
            tokens = self.tokens[group.rows]
            if plan.window is not None:
                window = tokens[:, plan.window]
                window.copy_(torch.where(outcome.commit, outcome.token, window))
            else:
                assert self.window is not None
                columns = self.window[group.rows, : group.width]
                tokens.scatter_(1, columns, torch.where(outcome.commit, outcome.token, tokens.gather(1, columns)))
            given.choices.logical_and_(~outcome.commit)
            given.counts[0] -= outcome.commit.sum(-1)
            given.counts[3] += 1


@dataclass(frozen=True)
class Seat:
    """A row in a pass: the positions that are computed for it, and those that its strategy is shown."""

    row: Row
    columns: slice | Int[Tensor, " s"]
    view: slice
    needed: int
    """Columns that the row needs computed, without what rounding adds."""

    @classmethod
    def of(cls, row: Row, multiple: int) -> Seat:
        """The view is the window, widened to a multiple by positions that may not be chosen.

        It depends on the row alone: what a strategy remembers of its columns must stay in place whoever joins.
        """
        window = row.window
        columns = row.columns()
        first = row.length - rounded(row.length, multiple)  # with the padding of the row itself
        needed = columns.stop - columns.start if isinstance(columns, slice) else len(columns)
        if columns == slice(0, row.length):
            columns = slice(first, row.length)
        n = rounded(window.stop - window.start, multiple)
        start = max(window.stop - n, first)
        return cls(row, columns, slice(start, start + n), needed)

    @property
    def lead(self) -> int:
        """Columns of the view before the window."""
        lead: int = self.row.window.start - self.view.start
        return lead

    @property
    def width(self) -> int:
        """Columns that are computed."""
        columns = self.columns
        n: int = columns.stop - columns.start if isinstance(columns, slice) else len(columns)
        return n


@dataclass(frozen=True)
class Pass:
    """Rows that share a forward pass, group by group, and what the device has to know of them."""

    plan: Plan
    inputs: Inputs
    seats: tuple[tuple[Seat, ...], ...]
    """The rows of each group. One may stand in several times, to fill a group up to a number that occurs often."""
    columns_needed: int
    columns_computed: int
    """With the padding."""

    @cached_property
    def rows(self) -> list[Row]:
        """The rows, each once."""
        return list({id(seat.row): seat.row for seats in self.seats for seat in seats}.values())

    @property
    def keeps(self) -> bool:
        """Whether the rows keep keys and values."""
        return self.rows[0].options.reuse is not Reuse.NONE


class Planner:
    """Plans the next pass of every row."""

    def __init__(self, pad_id: int, multiple: int) -> None:
        self.pad_id = pad_id
        self.multiple = multiple
        """Lengths and widths are rounded up to this, so that few kinds of passes occur where they are recorded."""

    def passes(self, rows: Sequence[Row], pool: tuple[int, int]) -> list[Pass]:
        """Passes that bring every row one step further; `pool` is the size (rows, columns) of the kept keys."""
        seats = [Seat.of(row, self.multiple) for row in rows]
        return [self._pass(part, pool) for kind in _kinds(seats) for part in self._alike(kind)]

    def _alike(self, seats: Sequence[Seat]) -> list[list[Seat]]:
        """Rows of about the same width: to pad one row to the width of another must cost less than another pass."""
        ordered = sorted(seats, key=lambda seat: -seat.width)
        parts: list[list[Seat]] = []
        for place, seat in enumerate(ordered):
            excess = parts[-1][0].width - seat.width if parts else 0
            if not parts or excess * (len(ordered) - place) > PASS_COST:
                parts.append([])
            parts[-1].append(seat)
        return parts

    def _pass(self, seats: Sequence[Seat], pool: tuple[int, int]) -> Pass:
        keeps = seats[0].row.options.reuse is not Reuse.NONE
        # Matrix products compute 64 rows at a time at least: a row alone may as well be a little longer.
        multiple = self.multiple if self.multiple == 1 or len(seats) > 1 else 2 * self.multiple
        length = pool[1] if keeps else rounded(max(seat.row.length for seat in seats), multiple)
        groups = [self._filled_up(group) for group in _groups(seats)]
        ordered = [seat for group in groups for seat in group]
        span = self._span(ordered, length) if keeps else slice(0, length)
        window = self._window(ordered, length)
        places = [seat.row.place for seat in ordered]
        inputs = Inputs(
            tokens=torch.stack([self._padded(seat.row, length) for seat in ordered]),
            padding=torch.tensor([length - seat.row.length for seat in ordered]),
            span=None if isinstance(span, slice) else span,
            window=None if isinstance(window, slice) else window,
            places=torch.tensor(places) if keeps and places != [*range(pool[0])] else None,
            groups=tuple(_group_inputs(group) for group in groups),
        )
        plan = Plan(
            length=length,
            span=span if isinstance(span, slice) else None,
            window=window if isinstance(window, slice) else None,
            padded=any(seat.row.length < length for seat in ordered),
            attention=next((s.row.needs.attention for s in ordered if s.row.needs.attention is not None), None),
            groups=tuple(
                _group(group[0], slice(end - len(group), end))
                for group, end in zip(groups, accumulate(map(len, groups)), strict=True)
            ),
        )
        needed = sum(seat.needed for seat in seats)
        return Pass(plan, inputs, tuple(tuple(group) for group in groups), needed, len(ordered) * width(span))

    def _filled_up(self, seats: Sequence[Seat]) -> list[Seat]:
        """Where passes are recorded, so many rows that few numbers occur: the last one is repeated, and ignored."""
        n = len(seats)
        step = 1 if self.multiple == 1 or n <= 8 else 2 if n <= 16 else 4 if n <= 32 else 8
        return [*seats, *[seats[-1]] * (rounded(n, step) - n)]

    def _padded(self, row: Row, length: int) -> Int[Tensor, " length"]:
        return pad(row.canvas.tokens, (length - row.length, 0), value=self.pad_id)

    def _span(self, seats: Sequence[Seat], length: int) -> Span:
        """The columns that are computed; a row that needs fewer than the others repeats its last one."""
        columns = [_shifted(seat.columns, length - seat.row.length) for seat in seats]
        first = columns[0]
        fixed = first == slice(0, length) or not self._moves(seats)
        if isinstance(first, slice) and fixed and all(_same(one, first) for one in columns):
            return first
        lists = [torch.arange(one.start, one.stop) if isinstance(one, slice) else one for one in columns]
        most = rounded(max(len(one) for one in lists), self.multiple)
        return torch.stack([torch.cat((one, one[-1:].expand(most - len(one)))) for one in lists])

    def _window(self, seats: Sequence[Seat], length: int) -> Span:
        """The columns that are predicted."""
        starts = [length - seat.row.length + seat.view.start for seat in seats]
        widths = [seat.view.stop - seat.view.start for seat in seats]
        if len(set(starts)) == len(set(widths)) == 1 and not self._moves(seats):
            return slice(starts[0], starts[0] + widths[0])
        return (torch.tensor(starts)[:, None] + torch.arange(max(widths))).clamp_max(length - 1)

    def _moves(self, seats: Sequence[Seat]) -> bool:
        """Whether columns are named row by row although they are the same: so all blocks share one recording."""
        return self.multiple > 1 and any(len(seat.row.blocks) > 1 for seat in seats)


def rounded(number: int, multiple: int) -> int:
    """The number, rounded up to a multiple."""
    return -(-number // multiple) * multiple


def _kinds(seats: Sequence[Seat]) -> list[list[Seat]]:
    """Rows that may share a pass: all of them keep keys and values or none does, and no two read other attention."""
    kinds: dict[tuple[bool, AttentionNeed | None], list[Seat]] = {}
    for seat in seats:
        keeps = seat.row.options.reuse is not Reuse.NONE
        kinds.setdefault((keeps, seat.row.needs.attention), []).append(seat)
    # Rows that read no attention join those that do.
    for keeps in (False, True):
        readers = [part for (keep, need), part in kinds.items() if keep is keeps and need is not None]
        if readers:
            readers[0] += kinds.pop((keeps, None), [])
    return list(kinds.values())


def _groups(seats: Sequence[Seat]) -> list[list[Seat]]:
    """Rows by what one call of `select` can decide; the form of what is remembered must be the same as well."""
    groups: dict[Hashable, list[Seat]] = {}
    for seat in seats:
        form = None if seat.row.memory is None else seat.row.memory.form
        width = seat.view.stop - seat.view.start
        groups.setdefault((seat.row.rule, width, form), []).append(seat)
    return list(groups.values())


def _group(seat: Seat, rows: slice) -> Group:
    options = seat.row.options
    precision = options.confidence_dtype or seat.row.needs.precision
    width = seat.view.stop - seat.view.start
    return Group(seat.row.strategy, options.sampling, precision, options.record_edges, rows, width)


def _group_inputs(seats: Sequence[Seat]) -> GroupInputs:
    blocks = [seat.row.blocks[seat.row.block] for seat in seats]
    choices = [
        pad(seat.row.choices, (seat.lead, seat.view.stop - seat.view.start - seat.lead - len(seat.row.choices)))
        for seat in seats
    ]
    return GroupInputs(
        choices=torch.stack(choices),
        start=torch.tensor([seat.view.start for seat in seats]),
        window=torch.tensor([(seat.row.window.start, seat.row.window.stop) for seat in seats]),
        block=torch.tensor([(block.start, block.stop) for block in blocks]),
        counts=torch.tensor([seat.row.counts for seat in seats]).T.contiguous(),
    )


def _same(columns: slice | Tensor, other: slice) -> bool:
    return isinstance(columns, slice) and columns == other


def _shifted(columns: slice | Tensor, by: int) -> slice | Tensor:
    return slice(columns.start + by, columns.stop + by) if isinstance(columns, slice) else columns + by
