"""What travels between host and device: the inputs of a pass, its outcomes, and the memories of strategies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from dapd.decoding.plan import PassPlan
from dapd.decoding.row import Row
from dapd.decoding.step import Outcome
from dapd.decoding.tree import filled, tensors
from dapd.models.cache import KVPool
from dapd.models.columns import Span, as_tensor

Results = tuple[list[Outcome], list[object]]
"""For each group its outcome, which travels to the host, and its strategy's memory, which stays on the device."""


@dataclass(frozen=True)
class Inputs:
    """Everything that differs from pass to pass; it travels to the device in one piece."""

    tokens: Int[Tensor, "b length"]
    padding: Int[Tensor, " b"]
    """Columns of padding before each row."""
    span: Span
    """The columns to compute. Only a tensor travels; a slice is the same in all passes of a kind."""
    window: Span
    """The columns to predict, likewise."""
    places: Int[Tensor, " b"] | None
    """Each row's place among the kept keys and values; None: all places in order, or nothing is kept."""
    window_bounds: Int[Tensor, "b 2"]
    """The first position of each row's window, and the one after its last."""
    block_bounds: Int[Tensor, "b 2"]
    """Those of its active block."""
    counts: Int[Tensor, "5 b"]
    """The numbers of `Progress`, in order."""
    choices: tuple[Bool[Tensor, "g n"], ...]
    """For each group the positions of the windows that may be committed."""

    @classmethod
    def of(cls, plan: PassPlan, pad_id: int, pool: KVPool | None) -> Inputs:
        """The inputs of a pass whose keys and values are kept in `pool`; None: they are not kept."""
        rows = plan.members
        places = [row.place for row in rows]
        return cls(
            tokens=torch.stack([pad(row.canvas.tokens, (plan.length - row.length, 0), value=pad_id) for row in rows]),
            padding=torch.tensor([plan.length - row.length for row in rows]),
            span=plan.span,
            window=plan.window,
            places=None if pool is None or places == [*range(pool.rows)] else torch.tensor(places),
            window_bounds=torch.tensor([(row.window.start, row.window.stop) for row in rows]),
            block_bounds=torch.tensor([(row.blocks[row.block].start, row.blocks[row.block].stop) for row in rows]),
            counts=torch.tensor([row.counts for row in rows]).T.contiguous(),
            choices=tuple(torch.stack([row.choices for row in group.members]) for group in plan.groups),
        )

    def advance(self, plan: PassPlan, outcomes: Sequence[Outcome]) -> None:
        """Make these the inputs of the next pass, where that has the same form: tokens committed, fewer masks."""
        window = as_tensor(self.window, self.tokens) if isinstance(self.window, slice) else self.window
        for group, choices, outcome in zip(plan.groups, self.choices, outcomes, strict=True):
            tokens = self.tokens[group.rows]
            columns = window[group.rows, : outcome.commit.shape[1]]
            tokens.scatter_(1, columns, torch.where(outcome.commit, outcome.token, tokens.gather(1, columns)))
            choices.logical_and_(~outcome.commit)
            self.counts[0, group.rows] -= outcome.commit.sum(-1)
        self.counts[3] += 1


@dataclass(frozen=True)
class GroupState:
    """What a group has on the device: the random numbers drawn for this pass, and the strategy's memory of its rows."""

    uniform: Float[Tensor, "g n vocab"] | None
    """Random numbers by which tokens are drawn; None at temperature 0."""
    noise: Float[Tensor, "g n"] | None
    """Random numbers for the strategy; None where it does not ask for any."""
    memory: object
    """Every tensor in it has the rows as its first dimension."""

    @classmethod
    def of(cls, rows: Sequence[Row], vocab_size: int) -> GroupState:
        uniform = noise = None
        if rows[0].options.sampling.temperature > 0:
            uniform = torch.stack([row.draw("tokens", vocab_size) for row in rows])
        if rows[0].needs.draws:
            noise = torch.stack([row.draw("strategy") for row in rows])
        parts = zip(*(tensors(row.memory) for row in rows), strict=True)
        return cls(uniform, noise, filled(rows[0].memory, map(torch.stack, parts)))


def repeats(plan: PassPlan, outcomes: Sequence[Outcome]) -> bool:
    """Whether the pass after these outcomes has the same form for every row."""
    for group, outcome in zip(plan.groups, outcomes, strict=True):
        committed = outcome.commit.sum(-1).tolist()
        if not all(map(Row.repeats, group.members, committed, outcome.commit, outcome.token)):
            return False
    return True
