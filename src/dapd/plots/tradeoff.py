"""Score against forward passes, the Pareto fronts drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dapd.errors import DapdError
from dapd.evaluation.summary import Row, pareto
from dapd.plots.figure import Grid, check_suffix, plain, sheet
from dapd.plots.palette import style


def tradeoff(rows: Sequence[Row], path: Path | None = None, *, axes: Sequence[Any] | None = None) -> None:
    """A panel per task: each decoder with the 95% interval of its score, each family's Pareto front as a line, that of
    all decoders as a shadow."""
    if path is not None:
        check_suffix(path)
    if not rows:
        raise DapdError("there are no results to draw")
    tasks = list(dict.fromkeys(row.task for row in rows))
    columns = min(4, len(tasks))
    lines = -(-len(tasks) // columns)
    grid = Grid(len(tasks), columns, (max(5.2, 2.9 * columns), 2.6 * lines + 0.9))
    with sheet(path, grid, axes) as drawing:
        for axis, task in zip(drawing.axes, tasks, strict=True):
            _panel(axis, [row for row in rows if row.task == task], task)
        entries: dict[str, Any] = {}
        for axis in drawing.axes:
            handles, labels = axis.get_legend_handles_labels()
            entries |= dict(zip(labels, handles, strict=True))
        wide = min(4 if columns > 1 else 3, len(entries))
        drawing.legend(entries.values(), entries.keys(), "lower center", wide)


def _panel(axis: Any, rows: Sequence[Row], task: str) -> None:
    for family in dict.fromkeys(row.family for row in rows):
        mine = [row for row in rows if row.family == family]
        look = style(family)
        at = [r.nfe for r in mine], [r.score for r in mine]
        axis.scatter(*at, s=26, alpha=0.85, linewidths=0, label=plain(family), **look)
        spread = [r.score - r.low for r in mine], [r.high - r.score for r in mine]
        axis.errorbar(*at, yerr=spread, fmt="none", ecolor=look["color"], elinewidth=0.7, alpha=0.4, zorder=1)
        front = pareto(mine)
        axis.plot([r.nfe for r in front], [r.score for r in front], lw=1.2, alpha=0.7, color=look["color"])
    best = pareto(rows)
    axis.plot([r.nfe for r in best], [r.score for r in best], lw=5, alpha=0.12, color="black", zorder=0)
    axis.set_xscale("log")
    axis.set_xlabel("forward passes")
    axis.set_ylabel("score (%)")
    axis.set_title(plain(task))
    axis.margins(x=0.08, y=0.1)
    axis.grid(alpha=0.25, linewidth=0.5, which="both")
    _plain_ticks(axis)


def _plain_ticks(axis: Any) -> None:
    """Numbers rather than powers of ten on the logarithmic axis, five of them at most."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.xaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5), numticks=6))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
