"""What a forward pass did: to the rows that were decided together (`Outcome`), and to one of them (`Step`)."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor

from dapd.canvas import Canvas


@dataclass(frozen=True)
class Top:
    """The likeliest tokens at each position, the likeliest first."""

    token: Int[Tensor, "*g n k"]
    log_p: Float[Tensor, "*g n k"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a pass at the n positions of a window, for the g rows of a group or for one row."""

    commit: Bool[Tensor, "*g n"]
    """Positions that were selected; in a `Step` those whose token was committed."""
    token: Int[Tensor, "*g n"]
    """The token predicted at each position, committed or not."""
    confidence: Float[Tensor, "*g n"]
    """The probability of that token."""
    edges: Bool[Tensor, "*g n n"] | None
    """The dependency graph, where `record_edges` asks for it: edges[i, j] means that a taken j keeps i out."""
    top: Top | None = None
    """The likeliest tokens, where `record_top` asks for them."""


@dataclass(frozen=True, kw_only=True)
class Step(Outcome):
    """What one forward pass did to one row. Its tensors are on the host; positions count from the row's first token."""

    row: Hashable
    """The name under which the row was admitted: for `decode` the number of its canvas."""
    index: int
    """Forward passes of this row before this one."""
    window: slice
    """The positions that the strategy saw, and that n runs over."""
    tail: Bool[Tensor, " length"] | None
    """Masks that an early stop filled with EOS; None without early stop."""
    canvas: Canvas
    """The canvas after the commit."""
    seconds: float
    """Seconds from the beginning of the row's first pass to the end of this one."""
    compute_seconds: float
    """The row's share of the seconds that this pass took. Over all rows the shares add up to the time of the passes; a
    pass that failed counts for no row."""

    @property
    def done(self) -> bool:
        """Whether this was the row's last pass."""
        return not bool(self.canvas.masked.any())
