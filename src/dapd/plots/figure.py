"""What all figures share: one look, files whose bytes do not depend on the day, and a caller's figures left in peace.

Figures are drawn without pyplot and in a context: neither the settings nor the backend of the process change. A caller
who has axes already hands them over, and gets the panels drawn there, in the caller's own look.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapd.errors import DapdError, missing_extra

SUFFIXES = (".png", ".svg", ".pdf")
LOOK = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "lines.linewidth": 1.6,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "dapd",
    "figure.constrained_layout.use": True,
}
WIDE = 7.0
"""Inches: the width of a page's text."""


@dataclass(frozen=True)
class Grid:
    """How the panels of a figure lie."""

    panels: int
    columns: int
    size: tuple[float, float]
    """Inches."""
    sharex: bool = False
    sharey: bool = False

    @property
    def lines(self) -> int:
        return -(-self.panels // self.columns)


@dataclass(frozen=True)
class Sheet:
    """A figure being drawn: its panels, and what belongs to all of them."""

    axes: list[Any]
    grid: Grid
    own: bool
    """Whether the figure is ours; on a caller's we keep to the panels."""

    @property
    def figure(self) -> Any:
        return self.axes[0].figure

    def legend(self, handles: Iterable[Any], names: Iterable[str], place: str, columns: int) -> None:
        """One legend: outside of the panels of our figures, in the first panel of a caller's."""
        if self.own:
            self.figure.legend(list(handles), list(names), loc=f"outside {place}", ncols=columns)
        else:
            self.axes[0].legend(list(handles), list(names))

    def bar(self, image: Any, label: str) -> None:
        """The scale of the panels' colours."""
        bar = self.figure.colorbar(image, ax=self.axes, aspect=30, pad=0.02)
        bar.set_label(label)
        bar.outline.set_visible(False)

    def outer_labels(self, across: str, down: str) -> None:
        """Labels at the outer panels only; at all of a caller's, who may have put them anywhere."""
        for number, axis in enumerate(self.axes):
            if self.own:
                axis.label_outer()
            if not self.own or number + self.grid.columns >= len(self.axes):
                axis.set_xlabel(across)
                axis.tick_params(labelbottom=True)
            if not self.own or number % self.grid.columns == 0:
                axis.set_ylabel(down)


def has_matplotlib() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


@contextmanager
def sheet(path: Path | None, grid: Grid, axes: Sequence[Any] | None = None) -> Iterator[Sheet]:
    """A figure that is written to `path` at the end, or the panels that the caller gave."""
    if (path is None) == (axes is None):
        raise DapdError("a figure goes either to a file or to given axes: give one of path and axes")
    if axes is not None:
        if len(axes) != grid.panels:
            raise DapdError(f"{grid.panels} panels are to be drawn, but {len(axes)} axes were given")
        yield Sheet(list(axes), grid, own=False)
        return
    assert path is not None
    check_suffix(path)
    try:
        from matplotlib.figure import Figure
        from matplotlib.style import context
    except ImportError:
        raise missing_extra("matplotlib", "plots", "drawing figures") from None
    with context(["default", LOOK]):
        figure = Figure(figsize=grid.size)
        panels = figure.subplots(grid.lines, grid.columns, squeeze=False, sharex=grid.sharex, sharey=grid.sharey)
        for axis in panels.flat[grid.panels :]:
            axis.set_visible(False)
        yield Sheet(list(panels.flat[: grid.panels]), grid, own=True)
        save(figure, path)


def plain(text: str) -> str:
    """A text as it stands: dollar signs of a name begin no formula."""
    return text.replace("$", r"\$")


def check_suffix(path: Path) -> None:
    """Before anything costly is computed."""
    if path.suffix.lower() not in SUFFIXES:
        raise DapdError(f"{path.name}: figures are written as .png, .svg or .pdf")


def save(figure: Any, path: Path) -> None:
    """Write a figure without the date."""
    check_suffix(path)
    dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # a box stands for it in the figure
            figure.savefig(path, dpi=200, metadata=dates.get(path.suffix.lower()))
    except OSError as error:
        raise DapdError(f"cannot write the figure to {path}: {error.strerror or error}") from None
