"""`make demo` end to end, with one short question and quick decoders."""

from __future__ import annotations

from pathlib import Path

import pytest

from dapd.cli import demo
from dapd.trace import read_traces


def test_the_demo_shows_and_writes_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "TASK", "quiz-1")
    monkeypatch.setattr(demo, "WATCHED", {"original:k=32": "thirty-two tokens a pass"})
    monkeypatch.setattr(demo, "MORE", ("original:k=16",))
    demo.main(tmp_path)
    said = capsys.readouterr().out
    assert "thirty-two tokens a pass" in said
    assert "original k=32: 2 forward passes" in said
    for name in ("decoding.html", "trajectory.png", "heatmap.png", "segments.png", "tradeoff.png"):
        assert (tmp_path / name).stat().st_size > 1000
    (trace,) = read_traces(tmp_path / "traces" / "original-k=16.jsonl")
    assert len(trace.steps) == 4
