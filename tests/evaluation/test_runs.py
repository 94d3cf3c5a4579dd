"""Folders of results: what is kept, what a kill leaves behind, what is refused."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dapd.errors import DapdError
from dapd.evaluation.runs import RESULTS, Run, difference, environment

SETUP = {"model": "m", "strategy": {"name": "Dapd", "tau": 0.1}}


def test_what_is_appended_is_there(tmp_path: Path) -> None:
    run = Run.open(tmp_path / "a" / "b", SETUP)
    assert run.records() == []
    run.append([{"i": 0, "text": "line\u2028separator\nand é"}])
    run.append([{"i": 1}, {"i": 2}])
    assert [r["i"] for r in Run.open(tmp_path / "a" / "b", SETUP).records()] == [0, 1, 2]
    assert run.records()[0]["text"] == "line\u2028separator\nand é"


@pytest.mark.parametrize("left", ['{"i": 1, "te', "{", '{"i": 1}'])
def test_a_cut_line_does_not_count_and_is_overwritten(left: str, tmp_path: Path) -> None:
    run = Run.open(tmp_path, SETUP)
    run.append([{"i": 0}])
    with (tmp_path / RESULTS).open("a") as file:
        file.write(left)
    assert [r["i"] for r in run.records()] == [0]
    run.append([{"i": 7}])
    assert [json.loads(line)["i"] for line in (tmp_path / RESULTS).read_text().splitlines()] == [0, 7]


def test_a_file_that_is_one_cut_line(tmp_path: Path) -> None:
    run = Run.open(tmp_path, SETUP)
    (tmp_path / RESULTS).write_text('{"i"')
    run.append([{"i": 7}])
    assert (tmp_path / RESULTS).read_text() == '{"i": 7}\n'


@pytest.mark.parametrize("damage", ["nonsense\n", "[1]\n", '{"i": 1\n'])
def test_other_damage_is_refused_and_kept(damage: str, tmp_path: Path) -> None:
    run = Run.open(tmp_path, SETUP)
    run.append([{"i": 0}])
    (tmp_path / RESULTS).write_text('{"i": 0}\n' + damage + '{"i": 2}\n')
    with pytest.raises(DapdError, match="line 2"):
        run.records()
    assert (tmp_path / RESULTS).read_text() == '{"i": 0}\n' + damage + '{"i": 2}\n'


def test_another_setup_is_refused_with_what_differs(tmp_path: Path) -> None:
    Run.open(tmp_path, SETUP).append([{"i": 0}])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(DapdError, match=r"strategy\.tau: 0\.1 there, 0\.2 here"):
        Run.open(tmp_path, {"model": "m", "strategy": {"name": "Dapd", "tau": 0.2}})
    with pytest.raises(DapdError, match="seed: None there, 3 here"):
        Run.open(tmp_path, {**SETUP, "seed": 3})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_setup_without_results_may_be_taken_over(tmp_path: Path) -> None:
    other = {**SETUP, "seed": 3}
    first = Run.open(tmp_path, SETUP)
    with pytest.raises(DapdError, match="seed: None there, 3 here"):
        Run.open(tmp_path, other, take_over=False)
    second = Run.open(tmp_path, other)
    with pytest.raises(DapdError, match="seed: 3 there, None here"):
        first.append([{"i": 0}])
    assert second.records() == []
    second.append([{"i": 1}])
    with pytest.raises(DapdError, match="seed: 3 there, None here"):
        Run.open(tmp_path, SETUP)
    assert Run.open(tmp_path, other).records() == [{"i": 1}]


def test_results_without_a_setup_and_a_damaged_setup_are_refused(tmp_path: Path) -> None:
    (tmp_path / RESULTS).write_text("{}\n")
    with pytest.raises(DapdError, match=r"no setup\.json"):
        Run.open(tmp_path, SETUP)
    (tmp_path / "setup.json").write_text("{")
    with pytest.raises(DapdError, match="damaged"):
        Run.open(tmp_path, SETUP)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DapdError, match="cannot make"):
        Run.open(tmp_path / "file" / "below", SETUP)


def test_processes_append_without_mixing_their_lines(tmp_path: Path) -> None:
    run = Run.open(tmp_path, SETUP)
    code = (
        "import sys; from pathlib import Path; from dapd.evaluation.runs import Run\n"
        "run = Run(Path(sys.argv[1]))\n"
        "print('ready', flush=True)\n"
        "for i in range(150): run.append([{'who': 'a', 'i': i, 'text': 'a' * 5000}])\n"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "ready\n"
    for i in range(150):
        run.append([{"who": "b", "i": i, "text": "b" * 5000}])
    assert other.wait(timeout=120) == 0
    other.stdout.close()
    records = Run(tmp_path).records()
    for who in "ab":
        assert [r["i"] for r in records if r["who"] == who] == list(range(150))
    assert all(r["text"] == r["who"] * 5000 for r in records)


def test_difference_names_fields() -> None:
    assert difference({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}, "d": None}) == ["a.c: 2 there, 3 here"]
    assert difference(SETUP, SETUP) == []
    renamed = difference({"a": {"name": "x", "b": 1}, "c": 1}, {"a": {"name": "y", "d": 2}, "c": 2})
    assert renamed == ["a.name: 'x' there, 'y' here", "c: 1 there, 2 here"]


def test_the_environment_is_written_down(tmp_path: Path) -> None:
    run = Run.open(tmp_path, SETUP)
    run.note_environment()
    run.note_environment()
    first, _ = [json.loads(line) for line in (tmp_path / "environment.jsonl").read_text().splitlines()]
    assert first["packages"]["torch"]
    assert {"commit", "gpus", "cpus", "platform", "python"} <= first.keys()
    assert environment()["world_size"] == 1


def test_json_files_are_whole(tmp_path: Path) -> None:
    path = Run.open(tmp_path, SETUP).write("summary.json", {"path": Path("x"), "text": "é"})
    assert json.loads(path.read_text()) == {"path": "x", "text": "é"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["setup.json", "summary.json"]
