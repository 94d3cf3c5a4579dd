"""Two decodings compared pass by pass, in Python and by command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import dapd
from dapd.cli.app import app
from dapd.errors import DapdError
from dapd.evaluation.parting import Decision, likeness, settings_apart
from dapd.trace import Record, Trace, write_traces

M, EOS = 9, 8
ABOUT = {"model": "lab", "options": {"block_length": None, "seed": 0}, "prompt": "x"}


def record(step: int, tokens: dict[int, int], confidence: float = 0.5, tail: tuple[int, ...] = ()) -> Record:
    positions, texts = list(tokens), [f"<{token}>" for token in tokens.values()]
    return Record(step, positions, [*tokens.values()], [confidence] * len(tokens), 0, 1, 0.1, [*tail], texts)


def trace(*steps: Record) -> Trace:
    return Trace([1, M, M, M, M], [1, 2, 3, 4], M, EOS, 1, about=ABOUT, steps=list(steps))


BASE = trace(record(1, {1: 4}), record(2, {2: 5, 3: 6}), record(3, {4: 7}))


def test_what_decides_the_same_is_the_same_whatever_its_confidence() -> None:
    other = trace(record(1, {1: 4}, 0.75), record(2, {3: 6, 2: 5}), record(3, {4: 7}))
    compared = likeness(BASE, other)
    assert (compared.parting, compared.drift, compared.tokens) == (None, 0.25, 0)


def test_the_first_pass_that_decides_otherwise_is_named() -> None:
    other = trace(record(1, {1: 4}), record(2, {2: 6}), record(3, {3: 6, 4: 3}))
    compared = likeness(BASE, other)
    assert compared.parting is not None
    assert compared.parting.step == 2
    assert compared.parting.decisions == {
        2: (Decision(5, "<5>", 0.5), Decision(6, "<6>", 0.5)),
        3: (Decision(6, "<6>", 0.5), None),
    }
    assert compared.tokens == 2
    assert likeness(other, BASE).parting.decisions[3] == (None, Decision(6, "<6>", 0.5))  # type: ignore[union-attr]


def test_a_decoding_that_ends_sooner_and_an_early_stop() -> None:
    stopped = trace(record(1, {1: 4}), record(2, {2: EOS}, tail=(3, 4)))
    committed = trace(record(1, {1: 4}), record(2, {2: EOS, 3: EOS, 4: EOS}))
    assert likeness(stopped, committed).parting is None
    longer = trace(record(1, {1: 4}), record(2, {2: EOS}), record(3, {3: EOS, 4: EOS}))
    compared = likeness(stopped, longer)
    assert compared.parting is not None
    assert compared.parting.decisions == {3: (Decision(EOS, None, None), None), 4: (Decision(EOS, None, None), None)}
    assert compared.tokens == 0
    cut = replace(BASE, steps=BASE.steps[:2])
    assert likeness(BASE, cut).parting.step == 3  # type: ignore[union-attr]


def test_settings_that_differ() -> None:
    other = replace(BASE, about={**ABOUT, "options": {"block_length": 4, "seed": 0}, "prompt": "y"})
    assert settings_apart(BASE, other) == {"options.block_length": (None, 4)}


def test_other_canvases_are_refused() -> None:
    with pytest.raises(DapdError, match="different canvases"):
        likeness(BASE, replace(BASE, canvas=[2, M, M, M, M]))


def invoke(*paths: Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["diff", *map(str, paths)])
    return result.exit_code, result.output if result.exception is None else f"{result.output}{result.exception}"


def test_the_command(tmp_path: Path) -> None:
    lm = dapd.random("tiny-llada", seed=1)
    names = ("one", "same", "other")
    strategies = ("dapd-staged", "dapd-staged", "fast-dllm")
    for name, strategy in zip(names, strategies, strict=True):
        done = lm.generate_batch(["hi", "you"], max_new_tokens=12, strategy=strategy)
        write_traces(tmp_path / name, [one.trace for one in done])
    one, same, other = (tmp_path / name for name in names)
    code, output = invoke(one, same)
    assert code == 0
    assert output.count("the same in all") == 2
    assert "setting" not in output
    code, output = invoke(one, other)
    assert code == 1
    assert "strategy.name" in output
    assert "row 1: " in output
    assert "not decided" in output


def test_mistakes(tmp_path: Path) -> None:
    write_traces(tmp_path / "one", [BASE])
    write_traces(tmp_path / "two", [BASE, BASE])
    assert "holds 1 decoding and" in invoke(tmp_path / "one", tmp_path / "two")[1]
    assert "cannot read a trace" in invoke(tmp_path / "one", tmp_path / "none")[1]
