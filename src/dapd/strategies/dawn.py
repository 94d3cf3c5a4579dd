"""DAWN: attention to anchors in prompt and committed text lets less confident positions pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool
from torch import Tensor

from dapd.graph import independent_set
from dapd.io.fields import check_types
from dapd.strategies.base import (
    AttentionNeed,
    Needs,
    Observation,
    Selection,
    Strategy,
    check_range,
    top,
)

Reading = Literal["program", "paper"]


@dataclass(frozen=True)
class Dawn(Strategy):
    """Commit confident positions, less confident ones that attend to a sure token, and some others without conflict.

    If none of these three groups has a position, the most confident one is committed.

    U1: confidence >= confident. U2: confidence >= induce, and an edge to an anchor: a decided position, up to the end
    of the block, of which the model is sure (>= confident). U3: among the others with confidence >= low that are not
    tied to an accepted one, a conflict-free set in order of confidence. An edge is attention >= edge; keys that
    everything attends to (a column mean above sink) have none. `reading` defines anchors and ties exactly.
    """

    confident: float = 0.9
    """Confidence from which a position is committed by itself; also what an anchor must reach."""
    induce: float = 0.70
    """Confidence from which a position with an edge to an anchor is committed."""
    low: float = 0.80
    """Confidence from which a position without conflict is committed."""
    edge: float = 0.07
    """Attention from which there is an edge."""
    sink: float = 0.01
    """Mean attention received above which a key is a sink and has no edges."""
    layers: float | tuple[int, ...] = (-4, -3, -2, -1)
    """Layers whose attention is averaged."""
    reading: Reading = "program"
    """program, as the authors' code has it: an anchor needs a confident prediction, whichever token stands there, and a
    position is tied if it attends to one that is in both U1 and U2. paper, as the text reads: an anchor's own token
    must be that probable, and a position is tied if it has an edge, in either direction, to one in U1 or U2."""

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("confident", "induce", "low", "edge", "sink"):
            check_range(name, getattr(self, name), 0, 1)
        AttentionNeed(self.layers)

    @property
    def needs(self) -> Needs:
        return Needs(AttentionNeed(self.layers), sees="canvas", precision="float64", recordable=True)

    def edges(self, seen: Observation) -> Bool[Tensor, "batch n n"]:
        """edges[i, j]: i attends to j. The window is the whole canvas, so queries and keys are the same columns."""
        query = seen.valid[..., None]
        received = torch.where(query, seen.attention, 0).sum(-2) / seen.valid.sum(-1, keepdim=True)
        usable = seen.valid & (received <= self.sink)
        itself = torch.eye(seen.valid.shape[-1], dtype=torch.bool, device=seen.valid.device)
        edges: Tensor = (seen.attention >= self.edge) & usable[:, None] & query & ~itself
        return edges

    def anchors(self, seen: Observation) -> Bool[Tensor, "batch n"]:
        """Decided positions up to the end of the block, of which the model is sure."""
        decided = seen.valid & ~seen.masked & (seen.position < seen.block[:, 1:])
        if self.reading == "program":
            return decided & (seen.confidence >= self.confident)
        standing = seen.logits.softmax(-1).gather(-1, seen.current[..., None]).squeeze(-1)
        return decided & (standing >= self.confident)

    def select(self, seen: Observation, memory: object = None, /) -> Selection:
        edges = self.edges(seen)
        either = edges | edges.mT
        sure = seen.masked & (seen.confidence >= self.confident)
        anchored = (edges & self.anchors(seen)[:, None]).any(-1)
        induced = seen.masked & anchored & (seen.confidence >= self.induce)
        if self.reading == "program":
            tied = (edges & (sure & induced)[:, None]).any(-1)
        else:
            tied = (either & (sure | induced)[:, None]).any(-1)
        accepted = sure | induced
        rest = seen.masked & ~accepted & ~tied & (seen.confidence >= self.low)
        commit = accepted | independent_set(either, seen.confidence, rest)
        best = top(seen.confidence, seen.masked, 1)
        return Selection(commit | (best & ~commit.any(-1, keepdim=True)), edges=either)
