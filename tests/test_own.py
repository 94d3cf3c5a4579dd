"""Strategies of the user's own through every command that takes one, and what is said where there is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dapd.cli.app import app
from dapd.errors import DapdError
from dapd.own import find, is_own
from dapd.settings import named, read_settings, setting
from dapd.strategies import Threshold

SOURCE = '''
from dataclasses import dataclass
import dapd

@dataclass(frozen=True)
class Two:
    """The two surest positions."""
    count: int = 2

    def select(self, seen, memory=None, /):
        score = seen.confidence.masked_fill(~seen.masked, -1.0)
        best = score.topk(min(self.count, score.shape[-1]), -1).indices
        commit = seen.masked.new_zeros(seen.masked.shape).scatter(-1, best, True) & seen.masked
        return dapd.Selection(commit)

class Fussy:
    def __init__(self, what):
        pass

ready = dapd.strategy("fast-dllm", threshold=0.5)
number = 3
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_rules.py").write_text(SOURCE, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("name", ["my_rules:Two", "my_rules.py:Two", "./my_rules.py:Two"])
def test_by_module_and_by_file(here: Path, name: str) -> None:
    chosen, options = read_settings(f"{name}:count=3,block_length=8", ["temperature=0.5"])
    assert type(chosen.strategy).__name__ == "Two"
    assert vars(chosen.strategy) == {"count": 3}
    assert options.block_length == 8
    assert options.sampling.temperature == 0.5


def test_an_object_is_taken_as_it_is(here: Path) -> None:
    assert named("my_rules:ready").strategy == Threshold(0.5)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("my_rules:Nothing", "has no 'Nothing'"),
        ("my_rules:number", "no method `select`"),
        ("my_rules:Fussy", "cannot be made without arguments"),
        ("no_such_module:Two", "cannot be imported: ModuleNotFoundError"),
        ("absent.py:Two", "there is no file absent.py"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(here: Path, name: str, words: str) -> None:
    with pytest.raises(DapdError, match=words):
        named(name)


def test_a_file_that_cannot_be_imported(here: Path) -> None:
    (here / "broken.py").write_text("import no_such_thing\n", encoding="utf-8")
    with pytest.raises(DapdError, match=r"broken.py cannot be imported: ModuleNotFoundError: No module named"):
        find("broken.py:Two")


def test_only_commands_read_such_names(here: Path) -> None:
    """A server gets names of strategies from strangers: no module of theirs may be opened."""
    with pytest.raises(DapdError, match="unknown strategy"):
        setting("my_rules:Two")
    assert not is_own("dapd-staged@llada/gsm8k")
    assert not is_own("fast-dllm")


def test_through_the_commands(here: Path) -> None:
    model = ["-m", "random:tiny-llada", "--device", "cpu"]
    run = CliRunner().invoke
    done = run(app, ["generate", "abc", *model, "-s", "my_rules:Two", "-n", "8", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["nfe"] == 4
    done = run(app, ["generate", "abc", *model, "-s", "my_rules.py:Two:count=4", "-n", "8", "--json"])
    assert json.loads(done.stdout)["nfe"] == 2
    done = run(app, ["compare", *model, "-s", "my_rules:Two:count=2/4", "-t", "shuffle", "-p", "1", "--no-plot"])
    assert done.exit_code == 0, done.output
    assert "count=4" in done.output
    bench = ["--prompt", "8", "--gen", "16", "--strategies", "my_rules:Two", "--repeats", "1", "--warmup", "0"]
    done = run(app, ["bench", "step", *model, *bench])
    assert done.exit_code == 0, done.output
    assert "my_rules:Two" in done.output
    assert "count" in run(app, ["strategies", "my_rules:Two"]).output
