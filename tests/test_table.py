"""Tables as CSV, LaTeX and Markdown: what a cell holds comes out as it went in, whatever its characters mean there."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from dapd.errors import DapdError
from dapd.io.table import Table, check_table_file

ODD = Table(("decoder", "score %"), [("a_b & {c}", "99.5"), ('say "x", ~^\\', "$5#")], "100% odd")


def test_csv_is_read_back_as_it_was() -> None:
    assert [tuple(line) for line in csv.reader(io.StringIO(ODD.to_csv()))] == [ODD.head, *ODD.rows]


def test_latex_is_escaped() -> None:
    assert ODD.to_latex().splitlines() == [
        r"% \usepackage{booktabs}",
        "% 100% odd",
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"decoder & score \% \\",
        r"\midrule",
        r"a\_b \& \{c\} & 99.5 \\",
        r'say "x", \textasciitilde{}\textasciicircum{}\textbackslash{} & \$5\# \\',
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_markdown_sets_numbers_right() -> None:
    table = Table(("task", "method", "n"), [("a|b", "x", "1")], words=2)
    assert table.to_markdown() == "| task | method | n |\n|---|---|---:|\n| a\\|b | x | 1 |\n"


@pytest.mark.parametrize(("name", "start"), [("t.csv", "decoder,"), ("t.tex", "% \\use"), ("T.MD", "| decoder")])
def test_the_name_says_the_form(name: str, start: str, tmp_path: Path) -> None:
    assert ODD.write(tmp_path / name).read_text().startswith(start)


def test_files_that_cannot_be_written_are_refused_beforehand(tmp_path: Path) -> None:
    with pytest.raises(DapdError, match=r"t\.xlsx: tables are written as \.csv, \.tex or \.md"):
        check_table_file(tmp_path / "t.xlsx")
    with pytest.raises(DapdError, match="cannot write"):
        check_table_file(tmp_path / "none" / "t.csv")
    assert list(tmp_path.iterdir()) == []
