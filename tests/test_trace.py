"""Traces: records of hand-made steps, the counts, JSONL out and in."""

from __future__ import annotations

import json

import pytest
import torch

from dapd.canvas import Canvas
from dapd.decoding import Step
from dapd.errors import DapdError
from dapd.trace import Record, Recorder, Trace, read_traces, segments, write_traces

M, EOS, EOT = 9, 8, 7


def step(index, canvas, window, commit, token, *, tail=None, edges=None):
    """A step that commits `token` where `commit`, and what the canvas is afterwards."""
    commit, token = torch.tensor(commit, dtype=torch.bool), torch.tensor(token)
    after = canvas.commit(window, commit, token)
    if tail is not None:
        tail = torch.tensor(tail, dtype=torch.bool)
        after = after.commit(slice(0, after.length), tail, torch.full_like(after.tokens, EOS))
    confidence = token.float() / 10
    return Step(
        row=0,
        index=index,
        window=window,
        commit=commit,
        token=token,
        confidence=confidence,
        tail=tail,
        edges=edges,
        canvas=after,
        seconds=0.25 * (index + 1),
        compute_seconds=0.125,
    )


@pytest.fixture
def canvas():
    return Canvas.blank([1, 2], 4, mask_id=M)


@pytest.fixture
def first(canvas):
    """Three steps in one block."""
    recorder = Recorder(canvas, EOS, {"prompt": "ab"}, text=lambda token: f"<{token}>")
    window, tokens = slice(2, 6), [4, 5, 6, 7]
    now = canvas
    for index, commit in enumerate(([0, 1, 0, 1], [1, 0, 0, 0], [0, 0, 1, 0])):
        one = step(index, now, window, commit, tokens)
        recorder.add(one)
        now = one.canvas
    assert recorder.compute_seconds == 0.375
    return recorder.trace


@pytest.fixture
def second():
    """Two steps and an early stop."""
    canvas = Canvas.blank([3], 4, mask_id=M)
    recorder = Recorder(canvas, EOS, {"prompt": "c"}, text=lambda token: f"<{token}>")
    one = step(0, canvas, slice(1, 5), [1, 0, 0, 0], [4, 4, 4, 4])
    recorder.add(one)
    recorder.add(step(1, one.canvas, slice(1, 5), [0, 1, 0, 0], [4, EOS, 4, 4], tail=[0, 0, 0, 1, 1]))
    return recorder.trace


def test_records(first, second):
    assert (first.canvas, first.slots) == ([1, 2, M, M, M, M], [2, 3, 4, 5])
    assert (second.canvas, second.slots) == ([3, M, M, M, M], [1, 2, 3, 4])
    assert [r.positions for r in first.steps] == [[3, 5], [2], [4]]
    assert [r.tokens for r in first.steps] == [[5, 7], [4], [6]]
    assert first.steps[0].confidences == [0.5, 0.7]
    assert first.steps[0].texts == ["<5>", "<7>"]
    assert [r.masks_left for r in first.steps] == [2, 1, 0]
    assert [r.segments for r in first.steps] == [2, 2, 1]
    assert [r.step for r in first.steps] == [1, 2, 3]
    assert [(r.positions, r.tokens, r.tail, r.masks_left) for r in second.steps] == [
        ([1], [4], [], 3),
        ([2], [EOS], [3, 4], 0),
    ]
    assert first.about == {"prompt": "ab"}


def test_seconds_are_those_of_the_steps(first):
    assert [r.seconds for r in first.steps] == [0.25, 0.5, 0.75]
    assert first.seconds == 0.75


def test_tokens_after_some_steps(first, second):
    assert first.tokens(0) == first.canvas
    assert first.tokens(1) == [1, 2, M, 5, M, 7]
    assert first.tokens() == first.tokens(3) == [1, 2, 4, 5, 6, 7]
    assert second.tokens() == [3, 4, EOS, EOS, EOS]


def test_counts(first, second):
    assert (first.generated_ids, first.n_generated) == ([4, 5, 6, 7], 4)
    assert (second.generated_ids, second.n_generated) == ([4, EOS, EOS, EOS], 1)
    assert first.tokens_per_forward == pytest.approx(4 / 3)
    assert second.tokens_per_forward == pytest.approx(1 / 2)
    assert second.summary() == {
        "nfe": 2,
        "generated_tokens": 1,
        "tokens_per_forward": 0.5,
        "seconds": second.seconds,
        "complete": True,
    }


def test_eos_in_the_prompt_is_not_the_end():
    trace = Trace([EOS, 1, M, M], [2, 3], M, EOS, start=2, steps=[Record(1, [2, 3], [4, 5], [1.0, 1.0], 0, 1, 0.1)])
    assert (trace.generated_ids, trace.n_generated) == ([4, 5], 2)


@pytest.mark.parametrize(("open_ended", "counted"), [(True, 3), (False, 6)])
def test_nothing_behind_the_end_of_a_turn_counts(open_ended, counted):
    """Where EOS is banned, the canvas behind the text is filled with other tokens."""
    made = Record(1, [2, 3, 4, 5, 6, 7], [4, 5, EOT, 6, EOT, 4], [1.0] * 6, 0, 1, 0.1)
    trace = Trace([EOT, 1, *[M] * 6], [*range(2, 8)], M, EOS, 2, open_ended, steps=[made], eot_id=EOT)
    assert trace.n_generated == counted


def test_an_unfinished_trace_is_not_complete(canvas):
    trace = Recorder(canvas, EOS).trace
    assert (trace.complete, trace.nfe, trace.seconds, trace.tokens_per_forward) == (False, 0, 0.0, 0.0)
    assert Trace([1, 2], [], M, EOS).complete


def test_edges_are_positions_in_the_row_between_masks():
    """Only pairs that were masked before the step, counted from the row's own first token."""
    canvas = Canvas.blank([3], 4, mask_id=M)
    recorder = Recorder(canvas, EOS)
    edges = torch.zeros(4, 4, dtype=torch.bool)
    edges[0, 1] = edges[3, 2] = True
    one = step(0, canvas, slice(1, 5), [1, 0, 0, 0], [4] * 4, edges=edges)
    recorder.add(one)
    recorder.add(step(1, one.canvas, slice(1, 5), [0, 1, 0, 0], [4] * 4, edges=edges))
    assert [record.edges for record in recorder.trace.steps] == [[[1, 2], [4, 3]], [[4, 3]]]


def test_what_was_held_back_is_kept_on_request(canvas):
    recorder = Recorder(canvas, EOS, held=True)
    recorder.add(step(0, canvas, slice(2, 6), [0, 1, 0, 1], [4, 5, 6, 7]))
    assert recorder.trace.steps[0].held == [[2, 0.4], [4, 0.6]]


@pytest.mark.parametrize(
    ("decided", "want"),
    [("", 0), ("4", 1), ("2", 1), ("23", 1), ("24", 2), ("2357", 3), ("345", 1), ("234567", 1), ("357", 3), ("27", 2)],
)
def test_segments_by_hand(decided, want):
    """Columns 2..7 are the slots; the prompt beside them is no part of a run."""
    canvas = Canvas.blank([1, 2], 6, mask_id=M)
    commit = torch.tensor([str(column) in decided for column in range(8)])
    assert segments(canvas.commit(slice(0, 8), commit, torch.full((8,), 5))) == want


def test_round_trip(first, second, tmp_path):
    file = tmp_path / "trace.jsonl"
    write_traces(file, [first, second])
    assert read_traces(file) == [first, second]
    kinds = [json.loads(line)["kind"] for line in file.read_text().split("\n")[:-1]]
    assert kinds == ["trace", "step", "step", "step", "end", "trace", "step", "step", "end"]


def test_edges_survive_the_round_trip(tmp_path):
    trace = Trace([M], [0], M, EOS, steps=[Record(1, [0], [4], [0.5], 0, 1, 0.1, edges=[[0, 1]])])
    write_traces(tmp_path / "t", [trace])
    assert read_traces(tmp_path / "t") == [trace]


@pytest.mark.parametrize("text", ["naïve 東京 🙂", "\n\r\t\0", "\x85", "\u2028", "\u2029", "\x0b\x0c\x1c"], ids=ascii)
def test_any_text_survives_the_round_trip(tmp_path, text):
    """Some characters are line ends to Python's splitlines, but not to JSON."""
    record = Record(1, [0], [4], [0.5], 0, 1, 0.1, texts=[text])
    trace = Trace([M], [0], M, EOS, about={"prompt": text}, steps=[record])
    write_traces(tmp_path / "t", [trace])
    assert read_traces(tmp_path / "t") == [trace]


@pytest.fixture
def lines(first, second, tmp_path):
    write_traces(tmp_path / "whole", [first, second])
    return (tmp_path / "whole").read_text().splitlines(keepends=True)


def refused(tmp_path, content, words):
    file = tmp_path / "bad.jsonl"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(DapdError, match=words) as caught:
        read_traces(file)
    assert "bad.jsonl" in str(caught.value)


@pytest.mark.parametrize("n_lines", [1, 3, 4, 6, 8])
def test_truncated_between_lines(tmp_path, lines, n_lines):
    refused(tmp_path, "".join(lines[:n_lines]), "truncated")


@pytest.mark.parametrize("line", [0, 1, 4, 7, 8])
def test_truncated_inside_a_line(tmp_path, lines, line):
    refused(tmp_path, "".join(lines[:line]) + lines[line][:-9], f"line {line + 1}")


def test_a_lost_line_in_the_middle(tmp_path, lines):
    refused(tmp_path, "".join(lines[:4] + lines[5:]), "line 5.*'trace' line is out of place")
    refused(tmp_path, "".join(lines[1:]), "line 1.*'step' line is out of place")
    refused(tmp_path, "".join(lines[:5] + lines[4:]), "line 6.*'end' line is out of place")


@pytest.mark.parametrize(
    "text", ["hello\n", "{}\n", "[1, 2]\n", '"text"\n', "3\n", "null\n", '{"kind": "pie"}\n', '{"kind": []}\n']
)
def test_foreign_files(tmp_path, text):
    refused(tmp_path, text, "line 1: not a dapd trace")


@pytest.mark.parametrize("text", ["{}\n", "[1, 2]\n", "3\n"])
def test_what_a_trace_is_made_of_is_said(tmp_path, text):
    refused(tmp_path, text, "a line of a trace is a JSON object with a kind")


def test_a_file_that_is_nested_too_deeply(tmp_path):
    refused(tmp_path, "[" * 100_000 + "\n", "line 1: not a dapd trace .*nested too deeply")


def test_foreign_fields(tmp_path, lines):
    changed = json.loads(lines[1]) | {"colour": "red"}
    refused(tmp_path, lines[0] + json.dumps(changed) + "\n", "line 2.*colour")
    short = {k: v for k, v in json.loads(lines[0]).items() if k != "canvas"}
    refused(tmp_path, json.dumps(short) + "\n", "line 1.*canvas")


def test_binary_file(tmp_path):
    refused(tmp_path, b"\x89PNG\r\n\x1a\n\xff\xfe", "not text")


@pytest.mark.parametrize("content", ["", "\n"])
def test_empty_file(tmp_path, content):
    refused(tmp_path, content, "no trace|line 1")


def test_other_version(tmp_path, lines):
    other = json.loads(lines[0]) | {"version": 99}
    refused(tmp_path, json.dumps(other) + "\n", "line 1.*another version")


def test_no_file(tmp_path):
    with pytest.raises(DapdError, match="absent"):
        read_traces(tmp_path / "absent")


def test_a_folder_is_not_a_trace(tmp_path):
    with pytest.raises(DapdError, match=tmp_path.name):
        read_traces(tmp_path)
