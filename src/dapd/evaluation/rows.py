"""Rows of a data set, one JSON object per line; every error names the line that is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dapd.errors import DapdError
from dapd.io.files import parse_json

Row = dict[str, Any]


def read_rows(path: Path, columns: Mapping[str, type], hint: str = "") -> list[Row]:
    """The rows of a file, each with these columns, of these types; `hint` says what to do where there is no file."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise DapdError(f"cannot read {path}: {error.strerror}{hint and f'; {hint}'}") from None
    except UnicodeDecodeError:
        raise DapdError(f"{path} is not UTF-8 text") from None
    rows = [_row(line, columns, f"{path}, line {n}") for n, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise DapdError(f"{path} holds no rows")
    return rows


def _row(line: str, columns: Mapping[str, type], where: str) -> Row:
    try:
        row = parse_json(line)
    except ValueError as error:
        raise DapdError(f"{where}: not JSON ({error})") from None
    for column, kind in columns.items():
        if not isinstance(row, dict) or column not in row:
            raise DapdError(f"{where}: no column {column!r}; needed: {', '.join(columns)}")
        if not isinstance(row[column], kind):
            raise DapdError(f"{where}: {column} is {row[column]!r}; it must be of type {kind.__name__}")
    checked: Row = row
    return checked
