"""How commands show a table, and the option that writes it to files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import rich.table
import typer
from rich.console import Console
from rich.text import Text

from dapd.io.table import Table, check_table_file, write_tables

LONG = 8
"""Characters above which the head of a column of numbers takes two lines."""
NAME = 16
"""Characters that a column of words keeps, if it needs them, however many columns of numbers there are."""
COLUMN_GAP = 3
"""Characters between two columns."""

SaveTable = Annotated[
    list[Path] | None,
    typer.Option(
        "--save-table",
        metavar="FILE",
        help="Also write the table to a file: .csv, .tex (LaTeX) or .md; may be repeated.",
    ),
]


def check_files(paths: Sequence[Path] | None) -> None:
    """Refuse files that cannot be written, before the work begins."""
    for path in paths or ():
        check_table_file(path)


def save(paths: Sequence[Path] | None, *tables: Table) -> list[Path]:
    """Write the tables to each of the files that were asked for."""
    return [write_tables(path, tables) for path in paths or ()]


def show(console: Console, table: Table) -> None:
    """Print a table: long names take another line, numbers stay whole, the paper's own are dim.

    A table that is too wide comes in several parts, each of them with the columns of words.
    """
    for part in parts(table, console.width):
        title = Text(part.title, "table.title") if part.title else None
        view = rich.table.Table(title=title, title_justify="left")
        for place, name in enumerate(part.head):
            if place < part.words:
                view.add_column(Text(name), overflow="fold")
                continue
            style = "dim" if name.endswith(" paper") else None
            width = number_width(part, place)
            view.add_column(Text(folded(name)), justify="right", no_wrap=True, min_width=width, style=style)
        for row in part.rows:
            view.add_row(*map(Text, row))  # as plain strings, my_file.py:Star:tau=1 would have a star in it
        console.print(view)


def parts(table: Table, width: int) -> Iterator[Table]:
    """The table in parts, each with as many columns of numbers as fit next to the columns of words."""
    names = list(range(table.words))
    room = width - 1 - sum(min(NAME, max(map(len, column(table, place)))) + COLUMN_GAP for place in names)
    shown: list[int] = []
    title = table.title
    left = room
    for place in range(table.words, len(table.head)):
        need = number_width(table, place) + COLUMN_GAP
        if shown and need > left:
            yield picked(table, [*names, *shown], title)
            shown = []
            title = ""
            left = room
        shown.append(place)
        left -= need
    yield picked(table, [*names, *shown], title)


def picked(table: Table, places: Sequence[int], title: str) -> Table:
    """Some columns of a table."""
    rows = [[row[place] for place in places] for row in table.rows]
    return Table([table.head[place] for place in places], rows, title, table.words)


def column(table: Table, place: int) -> list[str]:
    return [table.head[place], *(row[place] for row in table.rows)]


def number_width(table: Table, place: int) -> int:
    """Characters that a column of numbers needs, its head included."""
    head, *cells = column(table, place)
    return max(map(len, (*folded(head).split("\n"), *cells)))


def folded(head: str) -> str:
    """The head of a column of numbers, on two lines if it is long."""
    return "\n".join(head.rsplit(" ", 1)) if len(head) > LONG else head
