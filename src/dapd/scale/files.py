"""Prompts in and results out, as JSON lines or as Parquet; the name's ending says which."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dapd.errors import DapdError, first_line, missing_extra, reason, unknown
from dapd.evaluation.runs import Record
from dapd.io.files import parse_json, write_bytes


class Unreadable(str):
    """The reason why a row cannot be read, in the place of its content."""


def read(path: Path) -> list[Any]:
    """The rows of a file: the value of each, or an `Unreadable` with the reason."""
    reader = _by_ending(path, {".jsonl": _read_lines, ".parquet": _read_parquet})
    try:
        path.stat()  # pyarrow does not say that a file is missing
        rows: list[Any] = reader(path)
    except OSError as error:
        raise DapdError(f"cannot read {path}: {reason(error)}") from None
    if not rows:
        raise DapdError(f"{path} holds no rows")
    return rows


def write(path: Path, records: Sequence[Record], columns: Mapping[str, type]) -> Path:
    """The records as a file, whole or not at all: the columns by their names, with the type of their values."""
    writer = _by_ending(path, {".jsonl": _lines, ".parquet": _parquet})
    return write_bytes(path, writer(records, columns))


def check_ending(path: Path) -> None:
    """Refuse a file name with an unknown ending, and Parquet where the package for it is missing."""
    if _by_ending(path, {".jsonl": False, ".parquet": True}):
        _pyarrow()


def _by_ending(path: Path, choices: dict[str, Any]) -> Any:
    if path.suffix not in choices:
        raise unknown(f"ending of {path.name}:", path.suffix, choices)
    return choices[path.suffix]


def _read_lines(path: Path) -> list[Any]:
    # Not splitlines(): prompts may hold separators that count as line ends there and not in JSON.
    return [_value(line) for line in path.read_bytes().split(b"\n") if line.strip()]


def _value(line: bytes) -> Any:
    try:
        value = parse_json(line)
        json.dumps(value, ensure_ascii=False).encode()  # half a character can be written in JSON, and nowhere else
        return value
    except ValueError as error:
        return Unreadable(f"not JSON: {first_line(error)}")


def _read_parquet(path: Path) -> list[Any]:
    arrow = _pyarrow()
    try:
        rows: list[Any] = arrow.read_table(path).to_pylist()
    except (ValueError, OSError, OverflowError, NotImplementedError) as error:  # dates beyond Python's, unusual codecs
        raise DapdError(f"cannot read {path}: {reason(error)}") from None
    return rows


def _lines(records: Sequence[Record], columns: Mapping[str, type]) -> bytes:
    lines = ({name: record[name] for name in columns if name in record} for record in records)
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()


def _parquet(records: Sequence[Record], columns: Mapping[str, type]) -> bytes:
    arrow = _pyarrow()
    out = io.BytesIO()
    import pyarrow

    types = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64()}
    kinds = dict(columns)
    whole = {name: [record.get(name) for record in records] for name in columns}
    if not all(isinstance(one, int) and -(2**63) <= one < 2**63 for one in whole["id"]):
        kinds["id"] = str  # a column has one type
        whole["id"] = [str(one) for one in whole["id"]]
    # A column without a single value would have no type at all, and files of one kind would not fit together.
    schema = pyarrow.schema([(name, types[kind]) for name, kind in kinds.items()])
    arrow.write_table(pyarrow.table(whole, schema), out)
    return out.getvalue()


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise missing_extra("pyarrow", "parquet", "reading and writing Parquet") from None
    return pyarrow.parquet
