"""The text of one decoding at several points of it, tokens in the colour of their step: the appendix's pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapd.errors import DapdError
from dapd.plots.decoding import WHEN, births, check
from dapd.plots.figure import AS_IT_COMES, WIDE, Grid, Layout, plain, sheet
from dapd.plots.palette import STEPS, labels
from dapd.trace import Trace

COLUMNS = 104
"""Characters per line of the picture."""
POINTS = (0.25, 0.5, 0.75, 1.0)
LINE = 0.135
"""Height of a line, in inches."""
FONT = 7.2
"""Size of the letters, in points: a whole number of pixels in a .png. Other sizes are rounded up to one, and long
tokens would run over their boxes."""
MOST_TOKENS = 400
MOST_TRACES = 4
MASKED = "#e4e7eb"


@dataclass(frozen=True)
class Token:
    """One token in its place on the grid of characters."""

    text: str
    line: int
    column: int
    slot: int


def states(
    traces: Sequence[Trace],
    path: Path | None = None,
    *,
    layout: Layout = AS_IT_COMES,
    axes: Sequence[Any] | None = None,
) -> None:
    """A panel for each quarter of the passes, trace by trace: tokens where they are decided, and boxes for the rest.

    A decoding of fewer than four passes has a panel for each of them; on a caller's axes it has four all the same.
    """
    check(traces, path, 1.0)
    if len(traces) > MOST_TRACES:
        raise DapdError(f"{len(traces)} texts cannot be read in one figure; give at most {MOST_TRACES} (--row picks)")
    if any(len(trace.slots) > MOST_TOKENS for trace in traces):
        raise DapdError(f"a figure of states has room for at most {MOST_TOKENS} new tokens")
    texts = [list(placed(trace)) for trace in traces]
    lines = max(tokens[-1].line for tokens in texts) + 1
    shown = [[max(1, round(point * trace.nfe)) for point in POINTS] for trace in traces]
    if axes is None:
        shown = [list(dict.fromkeys(passes)) for passes in shown]
    panels = sum(map(len, shown))
    size = (WIDE, panels * (lines * LINE + 0.35) + 0.6)
    with sheet(path, Grid(panels, 1, size), axes, layout) as drawing:
        panel = iter(drawing.axes)
        for trace, tokens, label, ends in zip(traces, texts, labels(traces), shown, strict=True):
            for passes in ends:
                axis = next(panel)
                _panel(axis, trace, tokens, passes)
                axis.set_xlim(0, COLUMNS + 2)
                axis.set_ylim(lines, 0)
                axis.axis("off")
                axis.set_title(plain(f"{label}, pass {passes} of {trace.nfe}"), loc="left", pad=3)
        drawing.bar(_scale(), WHEN, "bottom")


def placed(trace: Trace) -> Iterator[Token]:
    """The tokens on a grid of characters, broken at line ends and at the margin, without the EOS tokens at the end."""
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
    from matplotlib.patches import Rectangle

    born = births(trace).tolist()
    scale = _scale()
    for token in tokens:
        done = born[token.slot] * trace.nfe < passes - 0.5
        shade: Any = scale.to_rgba(100 * born[token.slot]) if done else MASKED
        box = (token.column + 0.05, token.line + 0.06)
        axis.add_patch(Rectangle(box, len(token.text) - 0.1, 0.88, facecolor=shade, linewidth=0))
        if done:
            red, green, blue = shade[:3]
            ink = "black" if 0.3 * red + 0.6 * green + 0.1 * blue > 0.45 else "white"
            place = (token.column, token.line + 0.5)
            look = {"family": "monospace", "fontsize": FONT, "va": "center_baseline", "parse_math": False}
            axis.text(*place, token.text, color=ink, **look)


def _scale() -> Any:
    """The map from progress in percent to colours."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    return ScalarMappable(Normalize(0, 100), STEPS)
