"""How far a command is, where there is no terminal to draw a bar on."""

import io

import pytest
from rich.console import Console

from dapd.cli import progress
from dapd.cli.progress import Working


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_line_now_and_then(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    out = io.StringIO()
    with Working(Console(file=out), "decoding", 8) as work:
        for _ in range(6):
            clock[0] += 10
            work.advance()
        work.tell("half of [it]")
    assert capsys.readouterr().err == "decoding: 2 of 8, 20 s\ndecoding: 4 of 8, 40 s\ndecoding: 6 of 8, 60 s\n"
    assert out.getvalue() == "half of [it]\n"


def test_a_total_that_is_not_known_and_silence(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    for quiet, told in ((False, "samples: 3, 30 s\n"), (True, "")):
        with Working(Console(file=io.StringIO(), quiet=quiet), "samples") as work:
            clock[0] += 30
            work.advance(3)
        assert capsys.readouterr().err == told


def test_a_bar_on_a_terminal(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    out = io.StringIO()
    with Working(Console(file=out, force_terminal=True, width=80), "decoding", 8) as work:
        clock[0] += 100
        work.advance(5)
    assert capsys.readouterr().err == ""
    assert "5/8" in out.getvalue()
