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
    lines = [f"decoding: {n} of 8, {10 * n} s, about {80 - 10 * n} s left\n" for n in (2, 4, 6)]
    assert capsys.readouterr().err == "".join(lines)
    assert out.getvalue() == "half of [it]\n"


def test_what_a_killed_run_left_done_is_no_measure_of_the_pace(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with Working(Console(file=io.StringIO()), "rows", 1000) as work:
        clock[0] += 100  # a model is loaded
        work.advance(900)
        capsys.readouterr()
        for _ in range(2):
            clock[0] += 10
            work.advance()
    assert capsys.readouterr().err == "rows: 902 of 1000, 120 s, about 980 s left\n"


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
