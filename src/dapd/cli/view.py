"""`dapd view`: traces as a page that plays them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dapd.errors import DapdError
from dapd.trace import Trace, read_traces
from dapd.viewer import write_page


def view(
    traces: Annotated[list[Path], typer.Argument(help="Trace files (`dapd generate --trace`), shown side by side.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("decoding.html"),
    title: Annotated[str | None, typer.Option(help="The page's title.")] = None,
    row: Annotated[
        int | None, typer.Option(min=1, help="Which trace of each file, counted from 1; default: all.")
    ] = None,
) -> None:
    """Write traces as one self-contained HTML page that plays them on a common clock of forward passes."""
    shown = picked(traces, row)
    write_page(out, shown, title)
    prompts = len({str(trace.about.get("prompt")) for trace in shown})
    note = f", of {prompts} different prompts" if prompts > 1 else ""
    print(f"wrote {out}: {len(shown)} decoding{'s' * (len(shown) > 1)}{note}, {out.stat().st_size / 1e6:.2f} MB")


def picked(paths: list[Path], row: int | None) -> list[Trace]:
    """All traces of the files, or one of each."""
    traces = []
    for path in paths:
        held = read_traces(path)
        if row is not None and row > len(held):
            raise DapdError(f"{path} holds {len(held)} trace{'s' * (len(held) > 1)}; there is no row {row}")
        traces += held if row is None else [held[row - 1]]
    return traces
