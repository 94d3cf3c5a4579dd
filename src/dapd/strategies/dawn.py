"""DAWN: attention to anchors in prompt and committed text lets less confident positions pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from dapd.graph import independent_set
from dapd.strategies.base import (
    AttentionNeed,
    Needs,
    Observation,
    Selection,
    Strategy,
    check_range,
    top,
)


@dataclass(frozen=True)
class Dawn(Strategy):
    """Commit three groups, and the best position if all are empty.

    U1: confidence >= confident. U2: confidence >= induce, and an edge to an anchor: a decided token, up to the end of
    the block, that the model itself gives a probability >= confident. U3: of the rest with confidence >= low and no
    edge to U1 or U2, a conflict-free set in order of confidence. An edge is attention >= edge, keys that everything
    attends to (a column mean above sink) left out. The rule as published; the authors' code differs in details.
    """

    confident: float = 0.9
    """Confidence that suffices alone, and probability that makes an anchor."""
    induce: float = 0.70
    """Confidence that suffices with an edge to an anchor."""
    low: float = 0.80
    """Confidence that suffices without conflict."""
    edge: float = 0.07
    """Attention that makes an edge."""
    sink: float = 0.01
    """Mean attention received above which a key is a sink and has no edges."""
    layers: float | tuple[int, ...] = (-4, -3, -2, -1)
    """Layers whose attention is averaged."""

    def __post_init__(self) -> None:
        for name in ("confident", "induce", "low", "edge", "sink"):
            check_range(name, getattr(self, name), 0, 1)
        AttentionNeed(self.layers)

    @property
    def needs(self) -> Needs:
        return Needs(AttentionNeed(self.layers), sees="canvas", precision="float64", recordable=True)

    def edges(self, seen: Observation) -> Bool[Tensor, "batch n n"]:
        """edges[i, j]: i attends to j. The window is the whole canvas, so queries and keys are the same columns."""
        assert seen.attention is not None
        query = seen.valid[..., None]
        received = torch.where(query, seen.attention, 0).sum(-2) / seen.valid.sum(-1, keepdim=True)
        usable = seen.valid & (received <= self.sink)
        itself = torch.eye(seen.valid.shape[-1], dtype=torch.bool, device=seen.valid.device)
        edges: Tensor = (seen.attention >= self.edge) & usable[:, None] & query & ~itself
        return edges

    def anchors(self, seen: Observation) -> Bool[Tensor, "batch n"]:
        p = seen.logits.softmax(-1).gather(-1, seen.current[..., None]).squeeze(-1)
        # A masked column holds the mask token, whose logit is at the lowest value: its p is 0.
        before = seen.position < seen.block[:, 1:]
        return seen.valid & before & (p >= self.confident)

    def select(self, seen: Observation, memory: object = None, /) -> Selection:
        edges = self.edges(seen)
        sure = seen.masked & (seen.confidence >= self.confident)
        anchored = (edges & self.anchors(seen)[:, None]).any(-1)
        accepted = sure | (seen.masked & anchored & (seen.confidence >= self.induce))
        either = edges | edges.mT
        tied = (either & accepted[:, None]).any(-1)
        rest = seen.masked & ~accepted & ~tied & (seen.confidence >= self.low)
        commit = accepted | independent_set(either, seen.confidence, rest)
        best = top(seen.confidence, seen.masked, 1)
        return Selection(commit | (best & ~commit.any(-1, keepdim=True)), edges=either)
