"""Controls: DAPD on graphs that are not the model's. They show whether the gain comes from the attention graph."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from dapd.errors import DapdError
from dapd.graph import edge_scores, ranks
from dapd.strategies.base import Needs, Observation
from dapd.strategies.dapd import Dapd


@dataclass(frozen=True)
class ShuffledGraph(Dapd):
    """DAPD on the model's own graph with its nodes permuted at random: the same density, the wrong neighbours."""

    @property
    def needs(self) -> Needs:
        return replace(super().needs, draws=True)

    def scores(self, seen: Observation) -> Float[Tensor, "batch n n"]:
        scores = super().scores(seen)
        # Node i gets the edges of the node that stands in i's place when the masked ones are shuffled.
        place = ranks(
            -torch.arange(scores.shape[-1], device=scores.device).expand(len(scores), -1).float(), seen.masked
        )
        shuffled = torch.where(seen.masked, seen.noise, -1).argsort(dim=-1, descending=True, stable=True)
        stand_in = shuffled.gather(-1, place)
        rows = scores.gather(-2, stand_in[..., None].expand_as(scores))
        return edge_scores(rows.gather(-1, stand_in[:, None].expand_as(scores)), seen.masked)


@dataclass(frozen=True)
class DistanceGraph(Dapd):
    """DAPD with an edge between positions that are closer than `width`, whatever the model attends to."""

    width: int = 4
    """Positions i and j conflict where |i - j| < width."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width < 1:
            raise DapdError(f"width is {self.width}; it must be at least 1")
        if self.tau_max >= 1:
            raise DapdError(f"tau_max is {self.tau_max}; edges of the distance graph weigh 1, so it must be below 1")

    @property
    def needs(self) -> Needs:
        return replace(super().needs, attention=None)

    def scores(self, seen: Observation) -> Float[Tensor, "batch n n"]:
        position = torch.arange(seen.masked.shape[-1], device=seen.masked.device)
        near = (position[:, None] - position[None, :]).abs() < self.width
        return edge_scores(near.float().expand(len(seen.masked), -1, -1), seen.masked)
