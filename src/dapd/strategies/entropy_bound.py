"""EB-Sampler: as many of the best positions as keep a bound on their joint dependence error, taken from entropies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from dapd.errors import DapdError
from dapd.graph import ranks
from dapd.io.fields import check_types
from dapd.strategies.base import Needs, Observation, Selection, Strategy, entropy, order_score


@dataclass(frozen=True)
class EntropyBound(Strategy):
    """Commit the best positions while their entropies, without the largest, add up to at most gamma; at least one.

    Their number is the largest n with sum_{l <= n} H_l - max_{l <= n} H_l <= gamma.
    """

    gamma: float = 0.1
    """Largest sum, in nats, of the entropies of positions that are committed together, without the largest of them."""
    order: Literal["confidence", "entropy", "margin"] = "confidence"
    """How positions are ranked: by confidence, entropy (low), or margin (of the best two tokens)."""

    def __post_init__(self) -> None:
        check_types(self)
        if self.gamma < 0:
            raise DapdError(f"gamma is {self.gamma}; it must not be negative")

    @property
    def needs(self) -> Needs:
        return Needs(precision="float64", recordable=True)

    def select(self, seen: Observation, memory: object = None, /) -> Selection:
        H = entropy(seen.logits)
        score = -H if self.order == "entropy" else order_score(seen, self.order)
        rank = ranks(score, seen.masked)
        in_order = torch.zeros_like(H).scatter(-1, rank, torch.where(seen.masked, H, 0))
        error = in_order.cumsum(-1) - in_order.cummax(-1).values
        count = (error <= self.gamma).long().cumprod(-1).sum(-1, keepdim=True).clamp_min(1)
        return Selection(seen.masked & (rank < count))
