"""DAPD, the paper's method: read attention as a dependency graph, unmask an independent set of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dapd.errors import DapdError
from dapd.graph import Direction, EdgeNorm, degrees, edge_scores, independent_set, normalised_edges
from dapd.io.fields import check_types
from dapd.strategies.base import (
    AttentionNeed,
    Needs,
    Observation,
    Progress,
    Rows,
    Selection,
    Strategy,
    check_range,
    on_every_position,
    top,
)

Shortcut = Literal["staged", "direct", "none"]
LateRule = Literal["union", "switch", "filter"]


@dataclass(frozen=True)
class Dapd(Strategy):
    """Commit positions of which no two depend on each other by the model's attention, as many as fit (Welsh-Powell).

    s_ij = (a_ij + a_ji) / 2; degree d_i = sum_j s_ij; a taken j keeps candidate i out if s_ij / max_k s_ik > tau.
    Positions are scanned by falling d_i * confidence_i, and each is taken unless one taken before keeps it out. tau
    rises linearly with the unmasked fraction. Two shortcuts: Staged also commits every confident position once half is
    unmasked; Direct commits the certain ones first, in every pass.
    """

    tau_min: float = 0.01
    """Edge threshold when nothing is unmasked."""
    tau_max: float = 0.15
    """Edge threshold when everything is unmasked."""
    shortcut: Shortcut = "staged"
    """When positions are committed for their confidence, whatever the graph says: those that are `confident` once the
    fraction `switch_at` is unmasked (staged), those that are `certain` in every pass (direct), or never (none)."""
    confident: float = 0.9
    """Staged: confidence from which a position counts as confident."""
    switch_at: float = 0.5
    """Staged: unmasked fraction from which confident positions are treated as `late_rule` says."""
    late_rule: LateRule = "union"
    """Staged, from `switch_at` on: commit the confident positions in addition to the independent set (union), commit
    them alone (switch), or take the independent set among them alone (filter)."""
    certain: float = 0.998
    """Direct: confidence that counts as 1. A softmax in bf16 rounds p >= 0.998 to 1.0, so this is the authors' test."""
    edge_norm: EdgeNorm = "row_max"
    """Divisor of edge scores before they are compared with tau: the maximum or the sum of the row, the maximum of all
    rows, or none (degrees stay raw)."""
    direction: Direction = "candidate_row"
    """Which of the two normalised scores of a pair must exceed tau: the candidate's, either, or both."""
    order: Literal["degree", "confidence"] = "degree"
    """Order of the scan: by degree times confidence, or by confidence alone."""
    layers: float | tuple[int, ...] = 0.3
    """Layers whose attention is averaged. A fraction: that share of them, from the last one back; or their indices."""
    rows: Rows = "position"
    """Dream only: the query that stands for a position, its own or that of the column which predicts it."""

    def __post_init__(self) -> None:
        check_types(self)
        if not 0 <= self.tau_min <= self.tau_max:
            raise DapdError(f"tau_min is {self.tau_min} and tau_max {self.tau_max}; need 0 <= tau_min <= tau_max")
        for name in ("confident", "certain", "switch_at"):
            check_range(name, getattr(self, name), 0, 1)
        AttentionNeed(self.layers)

    @property
    def needs(self) -> Needs:
        return Needs(AttentionNeed(self.layers, rows=self.rows), recordable=True)

    def tau(self, progress: Progress) -> Float[Tensor, " batch"]:
        return self.tau_min + (self.tau_max - self.tau_min) * progress.unmasked

    def select(self, seen: Observation, memory: object = None, /) -> Selection:
        scores = self.scores(seen)
        edges = normalised_edges(scores, self.edge_norm, self.tau(seen.progress).float(), self.direction)
        influence = degrees(scores) if self.order == "degree" else 1.0

        free, candidates = self.shortcuts(seen)
        chosen = independent_set(edges, influence * seen.confidence.float(), candidates)
        return Selection(chosen | free, edges=edges)

    def scores(self, seen: Observation) -> Float[Tensor, "batch n n"]:
        return edge_scores(seen.attention, seen.masked)

    def shortcuts(self, seen: Observation) -> tuple[Bool[Tensor, "batch n"], Bool[Tensor, "batch n"]]:
        """Positions that are committed whatever the graph says, and those among which it decides."""
        match self.shortcut:
            case "none":
                return torch.zeros_like(seen.masked), seen.masked
            case "direct":
                sure = seen.masked & (seen.confidence >= self.certain)
                return sure, seen.masked & ~sure
            case "staged":
                late = on_every_position(seen.progress.unmasked >= self.switch_at, seen.masked)
                sure = seen.masked & late & (seen.confidence >= self.confident)
        match self.late_rule:
            case "union":
                return sure, seen.masked
            case "switch":
                best = top(seen.confidence, seen.masked, 1) & late
                return sure | best, seen.masked & ~late
            case "filter":
                return torch.zeros_like(sure), sure | (seen.masked & ~sure.any(-1, keepdim=True))
