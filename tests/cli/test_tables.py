"""Tables on narrow screens, and the files that commands write their tables to."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from dapd.cli import info, tables
from dapd.cli.app import app
from dapd.errors import DapdError
from dapd.io.table import Table, write_tables

WIDE = Table(("decoder", *(f"n{i}" for i in range(20))), [("mine", *("1234567" for _ in range(20)))], "wide")


@pytest.mark.parametrize("width", [30, 80, 400])
def test_no_column_is_lost_on_a_narrow_screen(width: int) -> None:
    parts = list(tables.parts(WIDE, width))
    assert [head for part in parts for head in part.head[1:]] == list(WIDE.head[1:])
    assert [cell for part in parts for cell in part.rows[0][1:]] == list(WIDE.rows[0][1:])
    assert all(part.head[0] == "decoder" for part in parts)
    assert [part.title for part in parts] == ["wide"] + [""] * (len(parts) - 1)
    out = io.StringIO()
    tables.show(Console(file=out, width=width), WIDE)
    assert max(map(len, out.getvalue().splitlines())) <= width
    assert out.getvalue().count("1234567") == 20
    assert (len(parts) == 1) == (width == 400)


def test_a_table_of_words_alone_is_one_part() -> None:
    table = Table(("a", "b"), [("x" * 50, "y" * 50)], words=2)
    assert [part.rows for part in tables.parts(table, 40)] == [[["x" * 50, "y" * 50]]]


def test_names_are_no_markup_and_no_pictures() -> None:
    """`:Star:` is one of rich's names for a picture."""
    name = "my.py:Star:tau=1 [red]"
    out = io.StringIO()
    tables.show(Console(file=out, width=200), Table((name, "n"), [(name, "1")], name))
    assert out.getvalue().count(name) == 3


@pytest.mark.parametrize("width", [40, 60])
def test_names_are_whole_on_a_narrow_screen(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are there to be copied: a name that ends in dots is none."""
    out = io.StringIO()
    monkeypatch.setattr(info, "console", Console(file=out, width=width))
    for show in (info.models, info.doctor, lambda: info.strategies(None), lambda: info.strategies(None, paper=True)):
        show()
    assert "\u2026" not in out.getvalue()
    assert max(map(len, out.getvalue().splitlines())) <= width
    info.strategies("dapd-staged")
    assert "\u2026" not in out.getvalue()


def test_several_tables_in_a_file(tmp_path: Path) -> None:
    one, two = Table(("a", "b"), [("x", "1")]), Table(("c", "d"), [("y", "2")])
    assert write_tables(tmp_path / "t.csv", [one, two]).read_text() == "a,b\nx,1\n\nc,d\ny,2\n"


def test_a_bench_writes_its_table(tmp_path: Path) -> None:
    short = ["-m", "random:tiny-llada", "--device", "cpu", "--prompt", "8", "--gen", "16", "--repeats", "1"]
    files = [tmp_path / "t.csv", tmp_path / "t.tex"]
    asked = ["bench", "step", *short, "--warmup", "0", *(text for f in files for text in ("--save-table", str(f)))]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    rows = list(csv.DictReader(files[0].open(encoding="utf-8")))
    assert [row["strategy"] for row in rows] == ["original", "dapd-staged"]
    assert all(float(row["ms"]) > 0 and row["prompt"] == "8" for row in rows)
    assert r"\begin{tabular}" in files[1].read_text(encoding="utf-8")


@pytest.mark.parametrize("command", [["bench", "step"], ["bench", "canvas"], ["lab", "score", "lab"]])
def test_a_file_of_another_kind_is_refused_before_the_work(command: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [*command, "--save-table", str(tmp_path / "t.xls")])
    assert isinstance(result.exception, DapdError)
    assert "tables are written as .csv, .tex or .md" in str(result.exception)


def test_lab_score_writes_its_table(tmp_path: Path) -> None:
    file = tmp_path / "t.md"
    asked = ["lab", "score", "lab", "-t", "shuffle", "-n", "1", "--block", "0", "--eos", "none"]
    result = CliRunner().invoke(app, [*asked, "--save-table", str(file)])
    assert result.exit_code == 0, result.output
    assert file.read_text(encoding="utf-8").splitlines()[2].startswith("| shuffle | one block | 1 | ")
