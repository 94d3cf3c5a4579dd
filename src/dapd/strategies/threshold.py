"""Fast-dLLM, threshold rule: every position that is confident enough, and always the most confident one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dapd.errors import DapdError
from dapd.graph import ranks
from dapd.io.fields import check_types
from dapd.strategies.base import Needs, Observation, Selection, Strategy, check_range, top


@dataclass(frozen=True)
class Threshold(Strategy):
    """Commit {i : confidence_i >= threshold} and the best position."""

    threshold: float = 0.9
    """Every position of at least this confidence is taken."""
    budget: int | None = None
    """Consider only this many of the best positions, and one more for each that the previous pass considered and
    refused (Fast-dLLM's uncached sampler for Dream, where it is new tokens / steps); None: consider all."""

    def __post_init__(self) -> None:
        check_types(self)
        check_range("threshold", self.threshold, 0, 1)
        if self.budget is not None and self.budget < 1:
            raise DapdError(f"budget is {self.budget}; it must be at least 1")

    @property
    def needs(self) -> Needs:
        return Needs(precision="float64", recordable=True)

    def select(self, seen: Observation, memory: object = None, /) -> Selection:
        best = top(seen.confidence, seen.masked, 1)
        if self.budget is None:
            return Selection(best | (seen.masked & (seen.confidence >= self.threshold)))
        refused = memory if isinstance(memory, Tensor) else torch.zeros_like(seen.progress.step)
        looked_at = seen.masked & (ranks(seen.confidence, seen.masked) < (self.budget + refused)[:, None])
        commit = best | (looked_at & (seen.confidence >= self.threshold))
        return Selection(commit, (looked_at & ~commit).sum(-1))
