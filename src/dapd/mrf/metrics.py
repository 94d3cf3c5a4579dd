"""The paper's measures of an attention graph against the true one: AUC, edge/non-edge ratio, order violation rate."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dapd.graph import degrees, edge_scores, normalise
from dapd.mrf.data import true_graph
from dapd.mrf.paths import Paths

SELECTIONS = ("last 2", "last 1", "last 4", "all", "first 4", "first 2", "first 1")
"""The paper's layer selections, in the order of its table."""


@dataclass(frozen=True)
class Measure:
    """A mean with its spread over sampling paths (of the mean over models, as the paper has it) and over models."""

    mean: float
    over_paths: float
    over_models: float


@dataclass(frozen=True)
class Row:
    """The three measures of one decoding step, or of all of them."""

    auc: Measure
    ratio: Measure
    ovr: Measure


def selected_layers(selection: str, n_layers: int) -> slice:
    """The layers of a selection: 'last 2' of eight layers is 6..7."""
    side, _, count = selection.partition(" ")
    if side == "all":
        return slice(0, n_layers)
    return slice(n_layers - int(count), n_layers) if side == "last" else slice(0, int(count))


def layer_mean(paths: Paths, selection: str) -> Float[Tensor, "models steps paths n n"]:
    """Attention averaged over heads and the selected layers."""
    return paths.attention[:, :, :, selected_layers(selection, paths.attention.shape[3])].mean((3, 4))


def auc(
    scores: Float[Tensor, "*b n n"], edge: Bool[Tensor, "n n"], pairs: Bool[Tensor, "*#b n n"]
) -> Float[Tensor, "*b"]:
    """How often an edge scores above a non-edge, where a tie counts half; nan where one of the two kinds is missing."""
    flat = scores.flatten(-2)
    kind = edge.flatten()
    counted = pairs.flatten(-2)
    kept = counted.reshape(-1, counted.shape[-1]).any(0)
    flat = flat[..., kept]
    kind = kind[kept]
    counted = counted[..., kept]
    above, below = flat[..., kind, None], flat[..., None, ~kind]
    weight = (counted[..., kind, None] & counted[..., None, ~kind]).expand(*above.shape[:-2], -1, -1)
    wins = (above > below).to(scores.dtype) + 0.5 * (above == below)
    return (wins * weight).sum((-2, -1)) / weight.sum((-2, -1))


def order_violations(
    scores: Float[Tensor, "*b n n"], edge: Bool[Tensor, "n n"], nodes: Bool[Tensor, "*#b n"]
) -> Float[Tensor, "*b"]:
    """OVR: pairs d_i < d_j with the degree proxies reversed, out of all |V| (|V| - 1) / 2 pairs.

    True degrees are those of the graph that the masked nodes induce, because a decided node has left the graph.
    """
    proxy = degrees(scores)
    true: Int[Tensor, "*b n"] = (edge & nodes.unsqueeze(-1) & nodes.unsqueeze(-2)).sum(-1)
    counted = nodes.unsqueeze(-1) & nodes.unsqueeze(-2) & (true.unsqueeze(-1) < true.unsqueeze(-2))
    reversed_ = counted & (proxy.unsqueeze(-1) > proxy.unsqueeze(-2))
    n = nodes.sum(-1)
    return reversed_.sum((-2, -1)) / (n * (n - 1) / 2)


def measure_steps(
    attention: Float[Tensor, "models steps paths n n"], masked: Bool[Tensor, "steps paths n"], row_max: bool = False
) -> list[Row]:
    """One row per step. `row_max` ranks the scores as DAPD's decoder compares them: divided by the row's largest."""
    edge = true_graph().to(masked.device)
    upper = torch.ones_like(edge).triu(1)
    rows = []
    for step in range(masked.shape[0]):
        nodes = masked[step]
        scores = edge_scores(attention[:, step], nodes.expand(attention.shape[0], -1, -1))
        ranked = normalise(scores, "row_max") if row_max else scores
        # Row-max scores are directed, so both directions of a pair are judged; raw ones are symmetric.
        pairs = nodes.unsqueeze(-1) & nodes.unsqueeze(-2) & (upper | upper.mT if row_max else upper)
        area = spread(auc(ranked, edge, pairs))
        reversed_ = spread(order_violations(scores, edge, nodes.unsqueeze(0)))
        rows.append(Row(area, pooled_ratio(ranked, edge, pairs), reversed_))
    return rows


def spread(values: Float[Tensor, "models paths"]) -> Measure:
    """The mean of all values that are not nan, and the standard deviations over paths (of means over models) and over
    models (of means over paths)."""
    by_path, by_model = values.nanmean(0), values.nanmean(1)
    return Measure(float(values.nanmean()), deviation(by_path), deviation(by_model))


def deviation(values: Float[Tensor, " n"]) -> float:
    kept = values[values.isfinite()].double()
    return float(kept.std(correction=0)) if len(kept) else float("nan")


def pooled_ratio(
    scores: Float[Tensor, "models paths n n"], edge: Bool[Tensor, "n n"], pairs: Bool[Tensor, "paths n n"]
) -> Measure:
    """Mean score of edges over mean score of non-edges, each over all paths and models: a single path may hold
    one non-edge with a score near zero, and the mean of such ratios says nothing."""
    sums = [(scores * (pairs & kind)).sum((-2, -1)) for kind in (edge, ~edge)]
    counts = [(pairs & kind).sum((-2, -1)).expand_as(sums[0]) for kind in (edge, ~edge)]

    def ratio(dims: tuple[int, ...]) -> Tensor:
        means = [s.double().sum(dims) / c.double().sum(dims) for s, c in zip(sums, counts, strict=True)]
        return means[0] / means[1]

    return Measure(float(ratio((0, 1))), deviation(ratio((0,))), deviation(ratio((1,))))


def average(rows: list[Row]) -> Row:
    """All steps together: the plain mean of the seven, which is how the paper's overall figures come about."""

    def mean(measures: list[Measure]) -> Measure:
        parts = [(m.mean, m.over_paths, m.over_models) for m in measures]
        return Measure(*(sum(column) / len(column) for column in zip(*parts, strict=True)))

    return Row(mean([r.auc for r in rows]), mean([r.ratio for r in rows]), mean([r.ovr for r in rows]))
