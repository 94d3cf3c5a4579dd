"""Prompts and answers of the user's own, through `dapd compare`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dapd.cli.app import app
from dapd.errors import DapdError
from dapd.evaluation.file_task import FileTask


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_scores(tmp_path: Path) -> None:
    path = write(
        tmp_path / "mine.jsonl",
        {"prompt": "a", "answer": "Bonn  is it"},
        {"prompt": "b", "answers": ["4", "four"], "match": "contains"},
    )
    task = FileTask(path, 16)
    exact, loose = task.examples(2)
    assert [task.score(exact, text) for text in ("Bonn is\nit ", "Bonn", "")] == [1, 0, 0]
    assert [task.score(loose, text) for text in ("It is four.", "4", "five")] == [1, 1, 0]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"answer": "x"}, "no column 'prompt'"),
        ({"prompt": "x"}, "no answer"),
        ({"prompt": "x", "answers": []}, "no answer"),
        ({"prompt": "x", "answer": 3}, "no answer"),
        ({"prompt": "x", "answer": "y", "match": "fuzzy"}, "allowed: exact, contains"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, row: dict[str, object], words: str) -> None:
    with pytest.raises(DapdError, match=words):
        FileTask(write(tmp_path / "mine.jsonl", row), 16).examples(1)


def test_through_compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "mine.jsonl", {"prompt": "ab", "answer": "x"}, {"prompt": "c", "answer": "", "match": "contains"})
    command = ["compare", "-m", "random:tiny-llada", "--device", "cpu", "-t", "mine.jsonl", "-n", "8"]
    two = ["-s", "fast-dllm", "-s", "original", "--against", "original", "--no-plot"]
    done = CliRunner().invoke(app, [*command, *two])
    assert done.exit_code == 0, done.output
    assert "mine.jsonl: 2 prompts" in done.output
    assert "against original" in done.output
    summary = json.loads((tmp_path / "compare" / "summary.json").read_text(encoding="utf-8"))
    assert [gain["decoder"] for gain in summary["paired"]] == ["fast-dllm"]
    assert {row["score"] for row in summary["rows"]} == {50.0}


def test_the_advice_for_a_short_file_leads_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "mine.jsonl", {"prompt": "ab", "answer": "x"})
    command = ["compare", "-m", "random:tiny-llada", "--device", "cpu", "-t", "mine.jsonl", "-n", "8", "--no-plot"]
    many = CliRunner().invoke(app, [*command, "-s", "original", "-p", "3"])
    assert "has 1 prompt, and 3 were asked for; give --prompts 1" in str(many.exception)
    done = CliRunner().invoke(app, [*command, "-s", "original", "--prompts", "1"])
    assert done.exit_code == 0, done.output
