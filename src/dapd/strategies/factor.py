"""Fast-dLLM, factor rule: the more positions are committed together, the more confident each must be."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dapd.errors import DapdError
from dapd.graph import ranks
from dapd.io.fields import check_types
from dapd.strategies.base import Needs, Observation, Selection, Strategy


@dataclass(frozen=True)
class Factor(Strategy):
    """Commit the best positions; the more there are, the more confidence each needs.

    Sorted by confidence, c_1 >= c_2 >= ..., these are the positions before the first n > 1 with
    c_n < 1 - factor / (n + 1).
    """

    factor: float = 1.0
    """The larger it is, the less confidence suffices to take several positions."""

    def __post_init__(self) -> None:
        check_types(self)
        if self.factor < 0:
            raise DapdError(f"factor is {self.factor}; it must not be negative")

    @property
    def needs(self) -> Needs:
        return Needs(precision="float64", recordable=True)

    def select(self, seen: Observation, memory: object = None, /) -> Selection:
        rank = ranks(seen.confidence, seen.masked)
        fails = seen.masked & (rank > 0) & (seen.confidence < 1 - self.factor / (rank + 2))
        n_masked = seen.masked.sum(-1, keepdim=True)
        count = torch.where(fails, rank, n_masked).amin(-1, keepdim=True)
        # Upstream commits the last rank even where it fails: its loop ends at the same index in either case.
        count = torch.where(count == n_masked - 1, n_masked, count)
        return Selection(seen.masked & (rank < count))
