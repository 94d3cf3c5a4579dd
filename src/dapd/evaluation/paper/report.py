"""A table of the paper as rows of our numbers beside its own, on the screen, as Markdown and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dapd.io.table import Table

MEASURES = {"accuracy": "acc. %", "score": "score %", "steps": "steps", "speedup": "speedup", "tps": "TPS"}

DIGITS = {"speedup": 2}
"""Decimals of our numbers, where they are not one."""


@dataclass(frozen=True)
class Line:
    """One cell: what we measured and what the paper prints."""

    row: str
    column: str
    n: int
    """How many samples the numbers are averaged over."""
    ours: Mapping[str, float | None]
    """None: not scored here."""
    published: Mapping[str, float]
    extra: Mapping[str, float | None] = field(default_factory=dict)
    """Further values of ours that the paper does not print."""


@dataclass(frozen=True)
class Report:
    """A table, with the notes that its reader needs."""

    table: str
    label: str
    """Where a reader of the paper finds it: its number and what it is about."""
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()
    text: str = ""
    """The table as Markdown, where it is not made of lines."""

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def measures(self) -> list[str]:
        used = [name for line in self.lines for name in (*line.ours, *line.published)]
        return [name for name in MEASURES if name in used]

    def to_markdown(self) -> str:
        out = [f"# {self.table} ({self.label})", ""]
        if self.lines:
            out += [self.as_table().to_markdown().removesuffix("\n")]
        if self.text:
            out += [self.text]
        extras = [line for line in self.lines if line.extra]
        if extras:
            out += ["", "More:", ""]
            out += [f"- {line.row}, {line.column}: {_listed(line.extra)}" for line in extras]
        if self.notes:
            out += ["", *(f"- {note}" for note in self.notes)]
        return "\n".join(out) + "\n"

    def as_table(self) -> Table:
        """The lines as text, sorted by column as the paper groups them."""
        columns = list(dict.fromkeys(line.column for line in self.lines))
        ordered: Sequence[Line] = sorted(self.lines, key=lambda line: columns.index(line.column))
        names = self.measures()
        head = ("task", "method", "n", *(f"{MEASURES[n]} {who}" for n in names for who in ("ours", "paper")))
        rows = [
            (line.column, line.row, str(line.n), *(text for name in names for text in _pair(line, name)))
            for line in ordered
        ]
        return Table(head, rows, f"{self.table} ({self.label})", words=2)


def _pair(line: Line, name: str) -> tuple[str, str]:
    return (shown(line.ours[name], DIGITS.get(name, 1)) if name in line.ours else "", _number(line.published.get(name)))


def shown(value: float | None, digits: int = 1) -> str:
    return "not scored" if value is None else f"{value:.{digits}f}"


def _number(value: float | None) -> str:
    """As the paper prints it: one decimal, or two where it has two."""
    return "" if value is None else f"{value:.1f}" if round(value, 1) == value else f"{value:g}"


def _listed(values: Mapping[str, float | None]) -> str:
    return ", ".join(f"{name} {shown(value)}" for name, value in values.items())
