"""Figures of a comparison. The same colour for the same decoder everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dapd.errors import DapdError, missing_extra
from dapd.evaluation.summary import Row, pareto

# Okabe and Ito's palette, which colour-blind eyes can tell apart; DAPD gets the two strongest.
COLOURS = {
    "dapd-staged": "#D55E00",
    "dapd-direct": "#CC79A7",
    "fast-dllm": "#0072B2",
    "fast-dllm-factor": "#56B4E9",
    "eb-sampler": "#009E73",
    "klass": "#E69F00",
    "original": "#000000",
    "dawn": "#7F3C8D",
    "local-leap": "#3969AC",
    "control-shuffled": "#999999",
    "control-distance": "#666666",
    "control-confidence": "#B8860B",
    "dream": "#444444",
}
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "h", "p", "d")


def style(family: str) -> dict[str, Any]:
    """Colour and marker of a decoder."""
    names = list(COLOURS)
    place = names.index(family) if family in COLOURS else len(names)
    return {"color": COLOURS.get(family, "#AAAAAA"), "marker": MARKERS[place % len(MARKERS)]}


def tradeoff(rows: Sequence[Row], path: Path) -> None:
    """Score against forward passes, a panel per task, each decoder's Pareto front as a line."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        raise missing_extra("matplotlib", "plots", "drawing figures") from None
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise DapdError(f"{path.name}: figures are written as .png, .svg or .pdf")
    tasks = list(dict.fromkeys(row.task for row in rows))
    columns = min(4, len(tasks))
    lines = -(-len(tasks) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(3.4 * columns, 2.9 * lines), squeeze=False)
    for axis in axes.flat[len(tasks) :]:
        axis.set_visible(False)
    for axis, task in zip(axes.flat, tasks, strict=False):
        _panel(axis, [row for row in rows if row.task == task], task)
    seen: dict[str, Any] = {}
    for axis in axes.flat[: len(tasks)]:
        handles, labels = axis.get_legend_handles_labels()
        seen |= dict(zip(labels, handles, strict=True))
    figure.legend(seen.values(), seen.keys(), loc="lower center", ncols=min(5, len(seen)), fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0.06 + 0.05 / lines, 1, 1))
    figure.savefig(path, dpi=160)
    plt.close(figure)


def _panel(axis: Any, rows: Sequence[Row], task: str) -> None:
    for family in dict.fromkeys(row.family for row in rows):
        mine = [row for row in rows if row.family == family]
        look = style(family)
        axis.scatter(
            [r.nfe for r in mine], [r.score for r in mine], s=22, alpha=0.75, linewidths=0, label=family, **look
        )
        front = pareto(mine)
        axis.plot([r.nfe for r in front], [r.score for r in front], lw=1.2, alpha=0.7, color=look["color"])
    best = pareto(rows)
    axis.plot([r.nfe for r in best], [r.score for r in best], lw=4, alpha=0.12, color="black", zorder=0)
    axis.set_xscale("log")
    axis.set_xlabel("forward passes")
    axis.set_ylabel("score (%)")
    axis.set_title(task, fontsize=10)
    axis.grid(alpha=0.25, linewidth=0.5)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
