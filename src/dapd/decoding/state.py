"""What goes to the device with a pass besides its inputs, and what comes back from it, row by row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from dapd.decoding.plan import Outcome, Seat
from dapd.decoding.row import Decision, Memory, Row
from dapd.decoding.tree import filled, signature, tensors
from dapd.errors import StrategyContractError


@dataclass(frozen=True)
class Luggage:
    """What the rows of a group bring along: the numbers drawn for this pass, and what their strategy remembers."""

    uniform: Float[Tensor, "g n vocab"] | None
    """Draws for the tokens, where there is a temperature."""
    noise: Float[Tensor, "g n"] | None
    """Draws for the strategy, where it wants any."""
    memory: object


def luggage_of(seats: Sequence[Seat], vocab_size: int) -> Luggage:
    """The luggage of the rows of a group."""
    row = seats[0].row
    uniform = noise = None
    if row.options.sampling.temperature > 0:
        uniform = torch.stack([_in_view(seat, seat.row.draw("tokens", vocab_size)) for seat in seats])
    if row.needs.draws:
        noise = torch.stack([_in_view(seat, seat.row.draw("strategy")) for seat in seats])
    return Luggage(uniform, noise, _joined([seat.row.memory for seat in seats]))


def _in_view(seat: Seat, draws: Float[Tensor, n * v]) -> Float[Tensor, m * v]:
    """Draws for a window, with any number at the other columns of the view, which may not be chosen."""
    behind = seat.view.stop - seat.row.window.stop
    return pad(draws, (*[0] * (2 * draws.dim() - 2), seat.lead, behind), value=0.5)


def _joined(memories: Sequence[Memory | None]) -> object:
    """The memories of some rows as one, as their strategy returned it for them or for other rows each."""
    first = memories[0]
    if first is None:
        return None
    parts = [memory for memory in memories if memory is not None]
    if all(part.tree is first.tree for part in parts) and [part.index for part in parts] == [*range(first.rows)]:
        return first.tree
    columns = zip(*(tensors(part.tree) for part in parts), strict=True)
    return filled(
        first.tree,
        [torch.stack([t[part.index] for t, part in zip(column, parts, strict=True)]) for column in columns],
    )


def remember(seats: Sequence[Seat], tree: object) -> None:
    """Give every row its part of what the strategy remembers."""
    values = tensors(tree)
    if any(value.shape[:1] != (len(seats),) for value in values):
        name = type(seats[0].row.strategy).__name__
        shapes = ", ".join(str(list(value.shape)) for value in values)
        raise StrategyContractError(
            f"strategy {name} remembers tensors of shape {shapes} for a batch of {len(seats)}; "
            "the first dimension of each must be the batch"
        )
    form = signature(tree, skip=1)
    for index, seat in enumerate(seats):
        seat.row.memory = None if tree is None else Memory(tree, index, len(seats), form)


def decisions(seats: Sequence[Seat], outcome: Outcome) -> Iterator[tuple[Row, Decision]]:
    """What was decided for each row, cut to its window. A row that stands in twice is told once."""
    told: set[int] = set()
    for index, seat in enumerate(seats):
        if id(seat.row) in told:
            continue
        told.add(id(seat.row))
        window = slice(seat.lead, seat.lead + len(seat.row.choices))
        edges = None if outcome.edges is None else outcome.edges[index, window, window]
        yield (
            seat.row,
            Decision(
                outcome.commit[index, window], outcome.token[index, window], outcome.confidence[index, window], edges
            ),
        )


def repeats(groups: Sequence[Sequence[Seat]], outcomes: Sequence[Outcome]) -> bool:
    """Whether the pass after these outcomes has the same form for every row."""
    for seats, outcome in zip(groups, outcomes, strict=True):
        committed = outcome.commit.sum(-1).tolist()
        if not all(seat.row.repeats(n) for seat, n in zip(seats, committed, strict=True)):
            return False
        if any(row.stops(decision) for row, decision in decisions(seats, outcome) if row.options.early_stop):
            return False
    return True
