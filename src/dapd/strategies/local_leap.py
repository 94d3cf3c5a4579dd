"""LocalLeap: near a confident position a lower confidence suffices. No attention is needed."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F

from dapd.errors import DapdError
from dapd.io.fields import check_types
from dapd.strategies.base import Needs, Observation, Selection, Strategy, check_range, top


@dataclass(frozen=True)
class LocalLeap(Strategy):
    """Commit positions of confidence >= threshold, those of >= relaxed within `radius` of one, and always the best."""

    threshold: float = 0.9
    """Confidence from which a position is committed by itself, and is an anchor for its neighbours."""
    relaxed: float = 0.75
    """Confidence from which a position near an anchor is committed."""
    radius: int = 4
    """How far from an anchor, in positions, the relaxed threshold holds."""

    def __post_init__(self) -> None:
        check_types(self)
        check_range("threshold", self.threshold, 0, 1)
        check_range("relaxed", self.relaxed, 0, self.threshold)
        if self.radius < 0:
            raise DapdError(f"radius is {self.radius}; it must not be negative")

    @property
    def needs(self) -> Needs:
        return Needs(precision="float64", recordable=True)

    def select(self, seen: Observation, memory: object = None, /) -> Selection:
        anchor = seen.masked & (seen.confidence >= self.threshold)
        near = F.max_pool1d(anchor[:, None].float(), 2 * self.radius + 1, stride=1, padding=self.radius)[:, 0] > 0
        leap = seen.masked & near & (seen.confidence >= self.relaxed)
        return Selection(anchor | leap | top(seen.confidence, seen.masked, 1))
