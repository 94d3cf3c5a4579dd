"""Measures of the scores beyond the paper's: pooled models, the decoder's normalisation and threshold, single heads."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dapd.graph import edge_scores, normalise
from dapd.mrf.data import true_graph
from dapd.mrf.evaluate import Selected, measure_selection, usable_selections
from dapd.mrf.metrics import auc, average, layer_mean, measure_steps
from dapd.mrf.paths import Paths

TAUS = (0.01, 0.05, 0.15, 0.3, 0.5, 0.7, 0.9)


@dataclass(frozen=True)
class Cut:
    """How well a threshold on row-max normalised scores recovers the true graph, over all steps, paths and models."""

    tau: float
    edges_found: float
    """Share of true edges that score above tau. A pair counts twice: its score is normalised in the row of either
    end."""
    false_edges: float
    """Share of the other pairs that score above tau, counted in the same way."""


@dataclass(frozen=True)
class Heads:
    """AUC of single heads, mean over steps, paths and models."""

    median: float
    worst: float
    best: float
    """AUC of the head that is best on one half of the paths, measured on the other half."""
    best_layers: list[int]
    """How often, over the models, the best head lies in each layer."""
    by_layer: list[float]
    """Mean AUC of the single heads of each layer."""


@dataclass(frozen=True)
class ScoreStudy:
    """The measures that the report adds to those of the paper's tables."""

    pooled: dict[str, Selected]
    """Selections with the attention of all models averaged before anything is ranked: one graph instead of many."""
    row_max: dict[str, Selected]
    """Selections with scores as the decoder compares them, divided by the row's largest."""
    cuts: dict[str, list[Cut]]
    heads: Heads
    auc_by_model: dict[str, list[float]]
    """AUC of the raw scores for each model: the mean over paths of the mean over steps."""


def study_scores(paths: Paths, selections: tuple[str, ...] = ("last 2", "all")) -> ScoreStudy:
    return ScoreStudy(
        {name: pool_models(paths, name) for name in usable_selections(paths.attention.shape[3])},
        {name: measure_selection(paths, name, row_max=True) for name in selections},
        {name: cut_scores(paths, name) for name in selections},
        study_heads(paths),
        {name: auc_by_model(paths, name) for name in selections},
    )


def pool_models(paths: Paths, selection: str) -> Selected:
    """Measure the attention averaged over all models, path by path; this is possible because all models decode in the
    same orders."""
    steps = measure_steps(layer_mean(paths, selection).mean(0, keepdim=True), paths.masked)
    return Selected(steps, average(steps))


def pair_scores(paths: Paths, selection: str, row_max: bool) -> tuple[Float[Tensor, " e"], Float[Tensor, " f"]]:
    """All scores of true edges and all of non-edges; raw ones once per pair, row-max ones once per direction."""
    edge = true_graph().to(paths.masked.device)
    scores = edge_scores(layer_mean(paths, selection), paths.masked.expand(len(paths.attention), -1, -1, -1))
    scores = normalise(scores, "row_max") if row_max else scores
    pairs = (paths.masked.unsqueeze(-1) & paths.masked.unsqueeze(-2)) & ~torch.eye(len(edge), device=edge.device).bool()
    pairs = (pairs if row_max else pairs.triu(1)).expand_as(scores)
    return scores[pairs & edge], scores[pairs & ~edge]


def cut_scores(paths: Paths, selection: str) -> list[Cut]:
    edges, others = pair_scores(paths, selection, row_max=True)
    return [Cut(tau, float((edges > tau).float().mean()), float((others > tau).float().mean())) for tau in TAUS]


def study_heads(paths: Paths) -> Heads:
    areas = head_aucs(paths)
    half = areas.shape[1] // 2
    judged = areas[:, half:].nanmean(1).flatten(1)
    chosen = areas[:, :half].nanmean(1)
    best = chosen.flatten(1).argmax(1)
    layers = (best // areas.shape[-1]).bincount(minlength=areas.shape[-2])
    by_head = areas.nanmean(1)
    return Heads(
        median=float(by_head.flatten(1).median(1).values.mean()),
        worst=float(by_head.flatten(1).amin(1).mean()),
        best=float(judged.gather(1, best[:, None]).mean()),
        best_layers=layers.tolist(),
        by_layer=by_head.mean((0, 2)).tolist(),
    )


def auc_by_model(paths: Paths, selection: str) -> list[float]:
    mean = layer_mean(paths, selection)[:, :, :, None, None]
    pooled = Paths(paths.masked, mean, paths.sequences)
    return head_aucs(pooled).nanmean(1).flatten().tolist()


def head_aucs(paths: Paths) -> Float[Tensor, "models paths layers heads"]:
    """The AUC of every head on every path, mean over the steps at which it is defined."""
    edge = true_graph().to(paths.masked.device)
    upper = torch.ones_like(edge).triu(1)
    by_step = []
    for step, nodes in enumerate(paths.masked):
        pairs: Bool[Tensor, "paths n n"] = nodes.unsqueeze(-1) & nodes.unsqueeze(-2) & upper
        attention = paths.attention[:, step]
        by_model = [auc((a + a.mT) / 2, edge, pairs[:, None, None]) for a in attention]
        by_step.append(torch.stack(by_model))
    return torch.stack(by_step).nanmean(0)
