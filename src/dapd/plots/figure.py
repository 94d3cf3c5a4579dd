"""The common parts of all figures: one look, files whose bytes do not depend on the date, and no effect on a caller's
own figures.

Figures are drawn without pyplot and in a context: neither the settings nor the backend of the process change. A caller
who already has axes hands them over, and gets the panels drawn there, in the caller's own look.
"""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dapd.errors import DapdError, missing_extra, reason

SUFFIXES = (".png", ".svg", ".pdf")
LOOK = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "figure.titlesize": 11,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.6,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "dapd",
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.w_pad": 0.09,
    "figure.constrained_layout.h_pad": 0.09,
}
WIDE = 7.0
"""Width of a page's text, in inches."""
LARGEST = 40.0
"""Largest width or height of a figure, in inches; a larger one can only be a typing error."""


@dataclass(frozen=True)
class Layout:
    """The options that a caller has for any figure."""

    size: tuple[float, float] | None = None
    """Width and height in inches; None: a size that suits the content."""
    title: str | None = None
    """A heading over the whole figure."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Words of the figure -> words to show instead, for a decoder's name, an axis or a panel's title."""

    def __post_init__(self) -> None:
        if self.size is not None and not all(0 < inches <= LARGEST for inches in self.size):
            across, down = self.size
            raise DapdError(f"a figure of {across:g} x {down:g} inches; both must be above 0 and at most {LARGEST:g}")


AS_IT_COMES = Layout()


@dataclass(frozen=True)
class Grid:
    """The arrangement of a figure's panels."""

    panels: int
    columns: int
    size: tuple[float, float]
    """Width and height of the figure, in inches."""
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
    """Whether the figure is ours; a caller's gets labels on every panel and its legend in the first one."""
    entries: dict[str, Any] = field(default_factory=dict)
    """The legend so far: name -> the line or mark that it names. It is drawn last, when the names are final."""

    @property
    def figure(self) -> Any:
        return self.axes[0].figure

    def legend(self, *axes: Any) -> None:
        """Collect all names in one legend: below the panels of our figures, in the first panel of a caller's."""
        for axis in axes or self.axes:
            handles, names = axis.get_legend_handles_labels()
            self.entries.update(zip(names, handles, strict=True))
        if not self.own:
            self.axes[0].legend(self.entries.values(), self.entries.keys())

    def bar(self, image: Any, label: str, place: str = "right") -> None:
        """Draw the scale of the panels' colours, in percent."""
        bar = self.figure.colorbar(image, ax=self.axes, aspect=30, pad=0.02, location=place)
        bar.set_label(label)
        bar.outline.set_visible(False)

    def outer_labels(self, across: str, down: str) -> None:
        """Label the outer panels only; on a caller's figure label every panel, because they may be anywhere."""
        for number, axis in enumerate(self.axes):
            if self.own and self.grid.sharex | self.grid.sharey:
                axis.label_outer()
            if not self.own or number + self.grid.columns >= len(self.axes):
                axis.set_xlabel(across)
                axis.tick_params(labelbottom=True)
            if not self.own or number % self.grid.columns == 0:
                axis.set_ylabel(down)

    def finish(self, layout: Layout) -> None:
        """Apply the caller's words; draw the heading, and the legend in as many columns as fit, at most four."""
        names = self._say(layout.labels)
        if layout.title:
            self.figure.suptitle(plain(layout.title))
        for columns in range(min(4, len(names)), 0, -1):
            legend = self.figure.legend(
                list(self.entries.values()), names, loc="outside lower center", ncols=columns, columnspacing=1.5
            )
            if columns == 1 or legend.get_window_extent().width <= 0.96 * self.figure.bbox.width:
                return
            legend.remove()

    def _say(self, labels: Mapping[str, str]) -> list[str]:
        """Replace whole words of ours by the caller's, all at once, and give the names of the legend."""
        words = {plain(old): plain(new) for old, new in labels.items()}
        texts = [text for axis in self.figure.axes for text in _texts_of(axis)]
        shown = [*(text.get_text() for text in texts), *self.entries]
        for old in words:
            if not any(re.search(_whole(old), text) for text in shown):
                there = ", ".join(repr(text) for text in dict.fromkeys(shown) if text)
                raise DapdError(f"the figure has no {old!r} to be renamed; it shows {there}")
        if not words:
            return list(self.entries)
        pattern = "|".join(_whole(old) for old in sorted(words, key=len, reverse=True))
        for text in texts:
            text.set_text(re.sub(pattern, lambda found: words[found[0]], text.get_text()))
        return [re.sub(pattern, lambda found: words[found[0]], name) for name in self.entries]


def _texts_of(axis: Any) -> list[Any]:
    """The titles and the labels of a panel."""
    return [axis.title, axis._left_title, axis.xaxis.label, axis.yaxis.label]


def _whole(name: str) -> str:
    """A pattern that matches a name except inside of a longer one: dapd is not found in dapd-direct."""
    return rf"(?<![\w-]){re.escape(name)}(?![\w-])"


def has_matplotlib() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


@contextmanager
def sheet(
    path: Path | None, grid: Grid, axes: Sequence[Any] | None = None, layout: Layout = AS_IT_COMES
) -> Iterator[Sheet]:
    """A figure that is written to `path` at the end, or the panels that the caller gave."""
    if (path is None) == (axes is None):
        raise DapdError("a figure goes either to a file or to given axes: give one of path and axes")
    if axes is not None:
        if len(axes) != grid.panels:
            raise DapdError(f"{grid.panels} panels are to be drawn, but {len(axes)} axes were given")
        if layout != AS_IT_COMES:
            raise DapdError("size, title and labels are for figures that go to a file; set them on your own axes")
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
        figure = Figure(figsize=layout.size or grid.size)
        panels = figure.subplots(grid.lines, grid.columns, squeeze=False, sharex=grid.sharex, sharey=grid.sharey)
        for axis in panels.flat[grid.panels :]:
            axis.set_visible(False)
        drawing = Sheet(list(panels.flat[: grid.panels]), grid, own=True)
        yield drawing
        drawing.finish(layout)
        save(figure, path)


def plain(text: str) -> str:
    """Escape the dollar signs of a text, which would begin a formula. What is not UTF-8 is shown as question marks:
    matplotlib fails on it."""
    return text.encode(errors="replace").decode().replace("$", r"\$")


def check_suffix(path: Path) -> None:
    """Refuse a file that no figure can be written to, before anything costly is computed."""
    if path.suffix.lower() not in SUFFIXES:
        raise DapdError(f"{path}: figures are written as .png, .svg or .pdf")


def save(figure: Any, path: Path) -> None:
    """Write a figure, without the date in its metadata, so that equal figures are equal files."""
    check_suffix(path)
    dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # the figure shows a box instead
            figure.savefig(path, dpi=200, metadata=dates.get(path.suffix.lower()))
    except OSError as error:
        raise DapdError(f"cannot write the figure to {path}: {reason(error)}") from None
