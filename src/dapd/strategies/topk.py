"""LLaDA's own sampler: k positions in every step, or as many as its quota schedule says."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor

from dapd.errors import DapdError
from dapd.io.fields import check_types
from dapd.strategies.base import (
    Needs,
    Observation,
    Order,
    Progress,
    Selection,
    Strategy,
    check_steps,
    order_score,
    top,
)


def quota(progress: Progress, steps: int | None, k: int = 1) -> Int[Tensor, " batch"] | int:
    """Positions to commit now: floor(m / S) of m masks in S steps, one more in the first m mod S; else `k`."""
    if steps is None:
        return k
    share = progress.steps_per_block(steps)
    extra = progress.step < progress.block_total % share
    return (progress.block_total // share + extra).clamp_min(1)


@dataclass(frozen=True)
class TopK(Strategy):
    """Commit the best few positions of each step."""

    k: int = 1
    """Positions per step, where `steps` is not given."""
    steps: int | None = None
    """Total number of steps, spread evenly over the blocks (LLaDA's schedule)."""
    order: Order = "confidence"
    """How positions are ranked: by confidence, entropy (low), margin (of the best two tokens), or at random."""

    def __post_init__(self) -> None:
        check_types(self)
        if self.k < 1:
            raise DapdError(f"k is {self.k}; it must be at least 1")
        check_steps(self.steps)

    @property
    def needs(self) -> Needs:
        return Needs(precision="model", draws=self.order == "random", steps=self.steps, recordable=True)

    def select(self, seen: Observation, memory: object = None, /) -> Selection:
        return Selection(top(order_score(seen, self.order), seen.masked, quota(seen.progress, self.steps, self.k)))
