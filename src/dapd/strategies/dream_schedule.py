"""Dream's own sampler: a quota that follows the noise level from 1 down to eps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
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
    check_range,
    check_steps,
    order_score,
    top,
)

LONGEST_SCHEDULE = 1 << 16
"""Limit of consecutive passes without a commit where `steps` is not given."""


@dataclass(frozen=True)
class DreamSchedule(Strategy):
    """Commit the best positions, in each step as many as Dream's noise schedule says.

    At step i of S the noise falls from t to s: floor(m (1 - s/t)) of the m masks are committed, and all of them at the
    last step. The first steps may commit nothing; with S = m Dream's own sampler does so too.
    """

    steps: int | None = None
    """Total number of steps, spread evenly over the blocks; None: as many as there are masks."""
    order: Order = "entropy"
    """How positions are ranked: by entropy, confidence (maskgit_plus), margin (topk_margin), or at random (origin)."""
    alg_temp: float = 0.0
    """Above 0: draw the positions from softmax(score / alg_temp) instead of taking the best."""
    eps: float = 1e-3
    """Noise level at the end."""

    def __post_init__(self) -> None:
        check_types(self)
        check_steps(self.steps)
        check_range("eps", self.eps, 1e-9, 0.5)
        if self.alg_temp < 0:
            raise DapdError(f"alg_temp is {self.alg_temp}; it must not be negative")

    @property
    def needs(self) -> Needs:
        return Needs(
            precision="model",
            draws=self.order == "random" or self.alg_temp > 0,
            max_idle=self.steps or LONGEST_SCHEDULE,
            steps=self.steps,
            recordable=True,
        )

    def released(self, progress: Progress) -> Float[Tensor, " batch"]:
        """Share of the masks to commit: 1 - s/t at this step, and 1 from the last step on.

        In fp32 as upstream, because floor() can turn a rounding difference into another number of positions.
        """
        total = progress.total if self.steps is None else torch.full_like(progress.total, self.steps)
        steps = (total // progress.n_blocks.clamp_min(1)).clamp_min(1)

        def level(i: Tensor) -> Tensor:
            slope = torch.full_like(steps, self.eps - 1, dtype=torch.float32) / steps
            return torch.where(i < (steps + 1) / 2, 1 + slope * i, self.eps - slope * (steps - i))

        share = 1 - level(progress.step + 1) / level(progress.step)
        return torch.where(progress.step >= steps - 1, 1.0, share)

    def select(self, seen: Observation, memory: object = None, /) -> Selection:
        share = self.released(seen.progress)
        if self.order == "random":
            return Selection(seen.masked & ((seen.noise < share[:, None]) | (share >= 1)[:, None]))
        score = order_score(seen, self.order)
        if self.alg_temp > 0:
            # The best of score + Gumbel noise is a draw without replacement from its softmax.
            score = score / self.alg_temp - torch.log(-torch.log(seen.noise.clamp(1e-12, 1 - 1e-12)))
        return Selection(top(score, seen.masked, (seen.masked.sum(-1).float() * share).floor().long()))
