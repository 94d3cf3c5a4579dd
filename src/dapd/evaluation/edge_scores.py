"""The distribution of edge scores while a model decodes step by step, on which the choice of tau_min rests.

Before each commit the normalised scores between all pairs of masked positions are counted, both directions of a pair,
because normalising by the row makes them differ.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from dapd.graph import edge_scores, normalise
from dapd.strategies.base import AttentionNeed, Needs, Observation, Selection, top

BINS = 60
LOWEST = -5
"""Bins of the logarithm of the score, and its smallest power of ten; smaller scores count in the first bin."""
STAGES = 3
"""Thirds of the decoding, counted separately."""


class EdgeCounter:
    """A decoder that commits the most confident position and counts edge scores on the way."""

    def __init__(self, limits: Sequence[float], layers: float | tuple[int, ...] = 0.3) -> None:
        self.limits = tuple(limits)
        self.needs = Needs(AttentionNeed(layers))
        self.clear()

    def clear(self) -> None:
        self.counts = torch.zeros(STAGES, BINS, dtype=torch.int64)
        self.below = torch.zeros(len(self.limits), dtype=torch.int64)
        """How many scores lie below each of the limits."""

    def select(self, seen: Observation, memory: object = None, /) -> Selection:
        scores = normalise(edge_scores(seen.attention.float(), seen.masked), "row_max")
        itself = torch.eye(scores.shape[-1], dtype=torch.bool, device=scores.device)
        pairs = seen.masked[:, :, None] & seen.masked[:, None, :] & ~itself
        for row, unmasked in enumerate(seen.progress.unmasked.tolist()):
            self.count(scores[row][pairs[row]], unmasked)
        return Selection(top(seen.confidence, seen.masked, 1))

    def count(self, scores: Float[Tensor, " pairs"], unmasked: float) -> None:
        logs = scores.float().clamp_min(10.0**LOWEST).log10()
        self.counts[min(STAGES - 1, int(STAGES * unmasked))] += torch.histc(logs, BINS, LOWEST, 0).long().cpu()
        limits = torch.tensor(self.limits, device=scores.device)
        self.below += (scores[:, None] < limits).sum(0).cpu()
