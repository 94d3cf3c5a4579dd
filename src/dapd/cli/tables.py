"""How commands show a table, and the option that writes it to files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import rich.table
import typer
from rich.console import Console
from rich.markup import escape

from dapd.table import Table, check_table_file

LONG = 8
"""Characters above which the head of a column of numbers takes two lines."""
SaveTable = Annotated[
    list[Path] | None,
    typer.Option("--save-table", help="Write the table to a file, too: .csv, .tex (LaTeX) or .md; may be repeated."),
]


def check_files(paths: Sequence[Path] | None) -> None:
    """Refuse files that cannot be written, before the work begins."""
    for path in paths or ():
        check_table_file(path)


def save(table: Table, paths: Sequence[Path] | None) -> list[Path]:
    """Write the table to each of the files that were asked for."""
    return [table.write(path) for path in paths or ()]


def show(console: Console, table: Table) -> None:
    """The table on the screen: long names take another line, numbers stay whole, the paper's own are dim."""
    view = rich.table.Table(title=escape(table.title) or None, title_justify="left")
    for place, name in enumerate(table.head):
        if place < table.words:
            view.add_column(escape(name), overflow="fold")
            continue
        head = "\n".join(name.rsplit(" ", 1)) if len(name) > LONG else name
        width = max(map(len, (*head.split("\n"), *(row[place] for row in table.rows))))
        style = "dim" if name.endswith(" paper") else None
        view.add_column(escape(head), justify="right", no_wrap=True, min_width=width, style=style)
    for row in table.rows:
        view.add_row(*map(escape, row))
    console.print(view)
