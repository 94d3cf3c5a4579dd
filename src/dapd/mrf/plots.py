"""The figures of the report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dapd.mrf.decoders import Decoded
from dapd.mrf.paths import Paths
from dapd.mrf.study import pair_scores

EDGE, OTHER = "#0b6e99", "#d9822b"
STYLES = {
    "step by step": ("#222222", "s"),
    "top-k": ("#8c8c8c", "v"),
    "threshold": ("#d9822b", "o"),
    "EB": ("#b5483a", "D"),
    "KLASS": ("#8e6bb0", "P"),
    "DAPD Staged": ("#0b6e99", "o"),
    "DAPD Direct": ("#4fb0a5", "^"),
    "true graph": ("#d4a900", "*"),
}


def draw(paths: Paths, decoders: Sequence[Decoded], folder: Path) -> list[Path]:
    """Both figures; none where matplotlib is missing."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        return []
    matplotlib.use("Agg")
    matplotlib.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    found = [folder / "scores.png", folder / "validity.png"]
    draw_scores(paths, found[0])
    draw_validity(decoders, found[1])
    return found


def draw_scores(paths: Paths, target: Path) -> None:
    """Edge and non-edge scores: the last two layers and all, raw and as the decoder divides them."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(8, 5), constrained_layout=True)
    for row, selection in zip(axes, ("last 2", "all"), strict=True):
        for axis, row_max in zip(row, (False, True), strict=True):
            edges, others = (s.float().cpu() for s in pair_scores(paths, selection, row_max))
            top = 1.0 if row_max else float(edges.sort().values[int(0.995 * (len(edges) - 1))])
            histograms(axis, edges, others, top)
            layers = "all layers" if selection == "all" else "last two layers"
            axis.set_title(f"{layers}, {'divided by the row maximum' if row_max else 'raw'}", fontsize=9)
    axes[0, 0].legend(frameon=False)
    figure.savefig(target, dpi=150)
    pyplot.close(figure)


def histograms(axis: Any, edges: torch.Tensor, others: torch.Tensor, top: float) -> None:
    for values, colour, label in ((edges, EDGE, "edges"), (others, OTHER, "non-edges")):
        heights = torch.histc(values.clamp(0, top), bins=50, min=0, max=top) / len(values)
        axis.stairs(heights.tolist(), [top * i / 50 for i in range(51)], fill=True, color=colour, alpha=0.35)
        axis.stairs(heights.tolist(), [top * i / 50 for i in range(51)], color=colour, label=label)
    axis.set_xlabel("score")
    axis.set_ylabel("share of the pairs")
    axis.set_xlim(0, top)


def draw_validity(decoders: Sequence[Decoded], target: Path) -> None:
    """Validity against forwards, one line per decoder."""
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(8, 4.8), constrained_layout=True)
    for family, (colour, marker) in STYLES.items():
        rows = [d for d in decoders if d.family == family and ("all layers" not in d.setting)]
        rows.sort(key=lambda d: d.forwards)
        size = 15 if family == "true graph" else 6
        style = "none" if family in ("step by step", "true graph") else ":"
        axis.plot(
            [d.forwards for d in rows],
            [100 * d.valid for d in rows],
            color=colour,
            marker=marker,
            markersize=size,
            linestyle=style,
            linewidth=1.2,
            zorder=1 if family == "true graph" else 2,
            label=family,
        )
    for d in decoders:
        if d.family in ("step by step", "true graph"):
            beside = {"textcoords": "offset points", "fontsize": 8, "color": STYLES[d.family][0], "va": "center"}
            left = d.forwards > 8
            at = (4, -16) if "random" in d.setting else (4, 11) if left else (11, -7)
            axis.annotate(d.setting, (d.forwards, 100 * d.valid), xytext=at, ha="right" if left else "left", **beside)
    axis.set_xlabel("forward passes per sample (mean)")
    axis.set_ylabel("samples with all four constraints, %")
    axis.set_xlim(0.8, 9.2)
    axis.set_ylim(-2, 106)
    axis.grid(alpha=0.25)
    axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(target, dpi=150)
    pyplot.close(figure)
