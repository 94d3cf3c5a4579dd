"""Figures of score against forward passes, with Pareto fronts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dapd.errors import DapdError
from dapd.evaluation.summary import Row, pareto
from dapd.plots.axes import TITLE_PAD, Mark, draw_marks, log_axis, percent_limits
from dapd.plots.figure import AS_IT_COMES, WIDE, Grid, Layout, check_suffix, plain, sheet
from dapd.plots.palette import style

MOST_COLUMNS = 3


def tradeoff(
    rows: Sequence[Row],
    path: Path | None = None,
    *,
    layout: Layout = AS_IT_COMES,
    axes: Sequence[Any] | None = None,
) -> None:
    """A panel per task: each decoder with the 95% interval of its score, each family's Pareto front as a line, and the
    front of all decoders as a shadow."""
    if path is not None:
        check_suffix(path)
    if not rows:
        raise DapdError("there are no results to draw")
    tasks = list(dict.fromkeys(row.task for row in rows))
    columns = min(MOST_COLUMNS, len(tasks))
    lines = -(-len(tasks) // columns)
    size = (WIDE if columns > 1 else 4.6, (2.0 if columns == MOST_COLUMNS else 2.5) * lines + 0.9)
    with sheet(path, Grid(len(tasks), columns, size), axes, layout) as drawing:
        for axis, task in zip(drawing.axes, tasks, strict=True):
            _panel(axis, [row for row in rows if row.task == task], task)
        drawing.outer_labels("forward passes (per prompt)", "score (%)")
        drawing.legend()


def _panel(axis: Any, rows: Sequence[Row], task: str) -> None:
    log_axis(axis, min(row.nfe for row in rows), max(row.nfe for row in rows))
    axis.set_ylim(percent_limits(edge for row in rows for edge in (row.low, row.score, row.high)))
    axis.set_title(plain(task), pad=TITLE_PAD)
    for family in dict.fromkeys(row.family for row in rows):
        mine = [row for row in rows if row.family == family]
        shade = style(family)["color"]
        spread = [r.score - r.low for r in mine], [r.high - r.score for r in mine]
        at = [r.nfe for r in mine], [r.score for r in mine]
        axis.errorbar(*at, yerr=spread, fmt="none", ecolor=shade, elinewidth=0.7, alpha=0.4, zorder=1)
        front = pareto(mine)
        axis.plot([r.nfe for r in front], [r.score for r in front], lw=1.2, alpha=0.7, color=shade)
    best = pareto(rows)
    axis.plot([r.nfe for r in best], [r.score for r in best], lw=5, alpha=0.12, color="black", zorder=0)
    draw_marks(axis, [Mark(row.nfe, row.score, style(row.family), plain(row.family)) for row in rows])
