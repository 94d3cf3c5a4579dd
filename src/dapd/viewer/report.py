"""The page and the figures of some traces, all at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dapd.errors import DapdError
from dapd.io.files import make_folder
from dapd.plots.decoding import heatmap, segments, trajectory
from dapd.plots.figure import has_matplotlib
from dapd.trace import Trace
from dapd.viewer.page import write_page


def write_report(folder: Path, traces: Sequence[Trace], title: str | None = None, suffix: str = ".png") -> list[Path]:
    """Write decoding.html, and trajectory, heatmap and segments as figures; give the paths of all of them.

    Without matplotlib only the page is written.
    """
    make_folder(folder)
    page = folder / "decoding.html"
    write_page(page, traces, title)
    figures = [folder / f"{name}{suffix}" for name in ("trajectory", "heatmap", "segments")]
    if not has_matplotlib():
        return [page]
    for draw, path in zip((trajectory, heatmap, segments), figures, strict=True):
        try:
            draw(traces, path)
        except DapdError as error:
            raise DapdError(f"{path.name}: {error}") from None
    return [page, *figures]
