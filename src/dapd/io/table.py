"""A table of texts, to be written as Markdown for readers, as CSV for a spreadsheet, or as LaTeX for a paper."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dapd.errors import DapdError
from dapd.io.files import check_writable, write_text

LATEX = str.maketrans(
    {char: f"\\{char}" for char in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)


@dataclass(frozen=True)
class Table:
    """Rows under a head. The first columns hold words and are set left, the others numbers and are set right."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    words: int = 1
    """How many columns hold words."""

    def to_csv(self) -> str:
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([self.head, *self.rows])
        return out.getvalue()

    def to_markdown(self) -> str:
        rule = ["---"] * self.words + ["---:"] * (len(self.head) - self.words)
        lines = [self.head, *self.rows]
        shown = ["| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines]
        return "\n".join([shown[0], f"|{'|'.join(rule)}|", *shown[1:]]) + "\n"

    def to_latex(self) -> str:
        """The table as a LaTeX tabular. It needs the package booktabs, which a comment in the first line names."""
        columns = "l" * self.words + "r" * (len(self.head) - self.words)
        head, *rows = (" & ".join(cell.translate(LATEX) for cell in line) + r" \\" for line in (self.head, *self.rows))
        above = [r"% \usepackage{booktabs}", *([f"% {self.title}"] if self.title else [])]
        body = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *rows]
        return "\n".join([*above, *body, r"\bottomrule", r"\end{tabular}"]) + "\n"

    def write(self, path: Path) -> Path:
        """Write the table in the form that the file's name asks for."""
        return write_tables(path, [self])


def write_tables(path: Path, tables: Sequence[Table]) -> Path:
    """Write one or several tables, one below the other, in the form that the file's name asks for."""
    check_table_file(path)
    forms = {".csv": Table.to_csv, ".tex": Table.to_latex, ".md": Table.to_markdown}
    return write_text(path, "\n".join(map(forms[path.suffix.lower()], tables)))


def check_table_file(path: Path) -> None:
    """Refuse a file that a table cannot be written to, before the minutes that making the table may take."""
    if path.suffix.lower() not in (".csv", ".tex", ".md"):
        raise DapdError(f"{path}: tables are written as .csv, .tex or .md")
    check_writable(path)
