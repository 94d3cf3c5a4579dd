"""The measurements as tables for people and as one JSON line for programs; a file is complete after every row."""

from __future__ import annotations

import dataclasses
import json
import platform
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch

from dapd.bench.cases import Record
from dapd.bench.floor import Rate
from dapd.io.files import check_writable, write_text
from dapd.io.table import Table

COLUMNS: dict[str, dict[str, str]] = {
    "measured": {
        "kind": "what",
        "model": "model",
        "dtype": "dtype",
        "strategy": "strategy",
        "capture": "capture",
        "reuse": "reuse",
        "prompt": "prompt",
        "gen": "gen",
        "batch": "B",
        "ms": "ms",
        "spread": "10-90%",
        "wall_ms": "wall ms",
        "tflops": "TFLOP/s",
        "floor_ms": "floor ms",
        "floor_ratio": "/ floor",
        "peak_gb": "peak GB",
        "steps": "steps",
        "tokens_per_s": "tokens/s",
    },
    "parts": {
        "model": "model",
        "prompt": "prompt",
        "gen": "gen",
        "batch": "B",
        "step_ms": "DAPD step ms",
        "forward_ms": "forward",
        "capture_ms": "capture",
        "rest_ms": "rest",
        "plain_step_ms": "plain step ms",
        "plain_rest_ms": "plain rest",
    },
    "canvas": {
        "model": "model",
        "columns": "columns",
        "plain_ms": "plain pass ms",
        "dapd_ms": "DAPD pass ms",
        "ratio": "ratio",
        "plain_mb": "plain MB",
        "dapd_mb": "DAPD MB",
    },
    "target": {"model": "model", "target": "target", "limit": "limit", "measured": "measured", "met": "met"},
    "first": {
        "model": "model",
        "prompt": "prompt",
        "gen": "gen",
        "steps": "steps",
        "first_ms": "first ms a step",
        "ms": "steady ms",
        "over_steady": "first / steady",
    },
    "stream": {
        "model": "model",
        "how": "how",
        "places": "places",
        "prompts": "prompts",
        "prompt": "prompt",
        "gen": "gen",
        "fewest": "passes from",
        "most": "to",
        "row_passes": "row-passes",
        "padding": "padding",
        "seconds": "s",
        "ideal_seconds": "ideal s",
        "over_ideal": "/ ideal",
        "prompts_per_s": "prompts/s",
    },
    "parity": {
        "model": "model",
        "dtype": "dtype",
        "strategy": "strategy",
        "rows": "rows",
        "commits": "commits",
        "differing": "differ",
        "differing_share": "share",
        "differing_forced": "from one canvas",
        "differing_forced_share": "share",
        "first_difference": "first at step",
        "rows_with_other_text": "rows that end otherwise",
        "versus_first_dtype": "share, to first dtype",
        "forced_versus_first_dtype": "from one canvas",
    },
}
"""The columns of each table, in order: field of a record -> heading. Empty columns are left out."""

WORDS = ("kind", "model", "dtype", "strategy", "capture", "reuse", "target", "how")
"""The columns that hold words; they stand before the numbers."""


def environment(device: torch.device, rates: Iterable[Rate] = ()) -> Record:
    """The versions and hardware that the numbers depend on apart from the settings."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": gpu or device.type,
        "threads": torch.get_num_threads(),
        "matmul": [{**dataclasses.asdict(r), "tflops": r.tflops, "rested_tflops": r.rested_tflops} for r in rates],
    }


class Report:
    """The rows of one benchmark; after each that is added, the file is written again."""

    def __init__(self, name: str, device: torch.device, path: Path | None) -> None:
        if path is not None:
            check_writable(path)
        self.name = name
        self.device = device
        self.path = path
        self.rates: list[Rate] = []
        self.rows: list[Record] = []

    def add(self, row: Record) -> None:
        self.rows.append(row)
        if self.path is not None:
            write_text(self.path, self.line() + "\n")

    @property
    def failed(self) -> bool:
        return any("error" in row for row in self.rows)

    def line(self) -> str:
        """Everything as one line of JSON."""
        return json.dumps({"bench": self.name, **environment(self.device, self.rates), "rows": self.rows})

    def floors(self) -> list[str]:
        """The matrix products that the floors come from, a line of text for each."""
        out = []
        for rate in self.rates:
            product = f"{rate.size} x {rate.size} {rate.dtype} product"
            out.append(f"{product}: {rate.ms:.3f} ms, {rate.tflops:.4g} TFLOP/s (sets the floor)")
            if rate.rested_ms is not None:
                out.append(f"  rested: {rate.rested_ms:.3f} ms, {rate.rested_tflops:.4g} TFLOP/s")
        return out

    def tables(self) -> list[Table]:
        """The measurements, in a table for each kind of row."""
        kinds = {
            kind: [row for row in self.rows if table_of(row) == kind and (kind == "target" or "error" not in row)]
            for kind in COLUMNS
        }
        return [as_table(rows, COLUMNS[kind]) for kind, rows in kinds.items() if rows]

    def failures(self) -> list[str]:
        """The measurements that failed, each with its error."""
        keys = ("kind", "model", "strategy", "capture", "dtype")
        wrong = [row for row in self.rows if "error" in row]
        known = {row["error"] for row in wrong if row["kind"] != "target"}  # a target fails with what it measures
        told = [row for row in wrong if row["kind"] != "target" or row["error"] not in known]
        lines = (f"{' '.join(str(row[key]) for key in keys if row.get(key))}: {row['error']}" for row in told)
        return list(dict.fromkeys(lines))


def table_of(row: Record) -> str:
    return row["kind"] if row["kind"] in COLUMNS else "measured"


def as_table(rows: Sequence[Record], columns: dict[str, str]) -> Table:
    """The rows, without columns in which none has a value. A kind or model that all rows share goes into the title."""
    cells = {key: [cell(row, key) for row in rows] for key in columns}
    shared = [key for key in ("kind", "model") if key in cells and len(set(cells[key])) == 1]
    silent = {key for key in columns if not any(cells[key]) or (key == "reuse" and set(cells[key]) == {"none"})}
    used = [key for key in columns if key not in silent and key not in shared]
    words = list(takewhile(WORDS.__contains__, used))
    lines = list(zip(*(cells[key] for key in used), strict=True))
    return Table([columns[key] for key in used], lines, ": ".join(cells[key][0] for key in shared), len(words))


def cell(row: Record, key: str) -> str:
    """One value of a row as text for a table."""
    if key == "spread" and row.get("low_ms") is not None:
        return f"{number(row['low_ms'])}-{number(row['high_ms'])}"
    if key == "limit":
        return f"{row['bound']} {row['limit']:g}"
    if key == "met":
        return "error" if "error" in row else "yes" if row["met"] else "no"
    if key == "reuse" and row.get("reuse") not in (None, "none") and row.get("refresh"):
        until = f" until {row['refresh_until']}" if row.get("refresh_until") else ""
        return f"{row['reuse']}, refresh {row['refresh']}{until}"
    return number(row.get(key))


def number(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return str(value) if isinstance(value, int) else f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
