"""What all figures share: matplotlib where it is drawn, one look, files whose bytes do not depend on the day."""

from __future__ import annotations

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
WIDE, COLUMN = 7.0, 3.4
"""Inches: the width of a page's text and of one of two columns."""


def pyplot() -> Any:
    """matplotlib's pyplot in the common look, drawing to files."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        raise missing_extra("matplotlib", "plots", "drawing figures") from None
    plt.rcParams.update(matplotlib.rcParamsDefault)
    matplotlib.use("Agg")
    plt.rcParams.update(LOOK)
    return plt


def check_suffix(path: Path) -> None:
    """Before anything costly is computed."""
    if path.suffix.lower() not in SUFFIXES:
        raise DapdError(f"{path.name}: figures are written as .png, .svg or .pdf")


def save(figure: Any, path: Path) -> None:
    check_suffix(path)
    dated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    try:
        figure.savefig(path, dpi=200, metadata=dated.get(path.suffix.lower()))
    except OSError as error:
        raise DapdError(f"cannot write the figure to {path}: {error.strerror}") from None
    finally:
        pyplot().close(figure)
