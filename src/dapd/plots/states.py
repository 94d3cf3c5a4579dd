"""The text of one decoding at several points of it, tokens in the colour of their step: the appendix's pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapd.errors import DapdError
from dapd.plots.decoding import births, check
from dapd.plots.figure import WIDE, Grid, plain, sheet
from dapd.plots.palette import STEPS, labels
from dapd.trace import Trace

COLUMNS = 104
"""Characters in a line."""
POINTS = (0.25, 0.5, 0.75, 1.0)
LINE = 0.135
"""Inches."""
MOST = 400
MASKED = "#e4e7eb"


@dataclass(frozen=True)
class Token:
    """One token in its place on the grid of characters."""

    text: str
    line: int
    column: int
    slot: int


def states(traces: Sequence[Trace], path: Path | None = None, *, axes: Sequence[Any] | None = None) -> None:
    """A panel for each quarter of the passes: what is decided by then, and boxes for the rest."""
    check(traces, path, 1.0)
    if len(traces) > 1 or len(traces[0].slots) > MOST:
        raise DapdError(f"the states of one trace of at most {MOST} new tokens are drawn at a time")
    trace = traces[0]
    tokens = list(layout(trace))
    lines = tokens[-1].line + 1
    height = lines * LINE + 0.05
    with sheet(path, Grid(len(POINTS), 1, (WIDE, len(POINTS) * (height + 0.3))), axes) as drawing:
        for axis, point in zip(drawing.axes, POINTS, strict=True):
            passes = max(1, round(point * trace.nfe))
            _panel(axis, trace, tokens, passes)
            axis.set_xlim(0, COLUMNS + 2)
            axis.set_ylim(lines, 0)
            axis.axis("off")
            axis.set_title(plain(f"{labels(traces)[0]}, pass {passes} of {trace.nfe}"), loc="left", pad=3)


def layout(trace: Trace) -> Iterator[Token]:
    """The tokens on a grid, broken at line ends and at the margin; the end's filling is left out."""
    said = {
        position: (text, token)
        for record in trace.steps
        for position, text, token in zip(
            record.positions, record.texts or map(str, record.tokens), record.tokens, strict=True
        )
    }
    line = column = 0
    for slot, position in enumerate(trace.slots):
        text, token = said.get(position, ("", trace.eos_id))
        shown = "".join(c for c in text if c.isprintable()) if token != trace.eos_id else ""
        if column + len(shown) > COLUMNS:
            line, column = line + 1, 0
        if shown or slot == 0:
            yield Token(shown, line, column, slot)
        column += len(shown)
        if "\n" in text and column:
            line, column = line + 1, 0


def _panel(axis: Any, trace: Trace, tokens: Sequence[Token], passes: int) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    born, colours = births(trace).tolist(), colormaps[STEPS]
    for token in tokens:
        step = born[token.slot]
        done = step <= passes
        shade: Any = colours((step - 1) / max(1, trace.nfe - 1)) if done else MASKED
        box = (token.column + 0.05, token.line + 0.06)
        axis.add_patch(Rectangle(box, len(token.text) - 0.1, 0.88, facecolor=shade, linewidth=0))
        if done:
            red, green, blue = shade[:3]
            ink = "black" if 0.3 * red + 0.6 * green + 0.1 * blue > 0.45 else "white"
            place = (token.column, token.line + 0.5)
            look = {"family": "monospace", "fontsize": 7.4, "va": "center_baseline", "parse_math": False}
            axis.text(*place, token.text, color=ink, **look)
