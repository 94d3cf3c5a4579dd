"""Streams: what was sent never changes, a stock client reads it, and denoise mode tells every pass."""

from __future__ import annotations

import openai
import pytest

from dapd.canvas import Canvas
from dapd.decoding import Options, decode
from dapd.server.jobs import Job, Work
from dapd.server.transcript import Transcript
from dapd.settings import DEFAULT_STRATEGY, setting
from dapd.viewer import live
from server.helpers_server import PROMPT

CHAT = {"messages": [{"role": "user", "content": "Shuffle the list: 3 1 2"}], "max_tokens": 24}


def said(chunks):
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])


@pytest.mark.parametrize("fields", [{}, {"block_length": 4}, {"strategy": "original", "stop": "e"}], ids=str)
def test_the_deltas_are_the_text(served, fields):
    chunks = served.chunks(**fields)
    whole = served.ask(**fields).json()["choices"][0]
    assert said(chunks) == whole["text"]
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks[:-1])


def test_blocks_stream_before_the_end(served):
    chunks = served.chunks(max_tokens=32, block_length=8, eos="ban")
    assert sum(bool(chunk["choices"][0]["text"]) for chunk in chunks) >= 4


def test_usage_comes_last_and_only_when_asked_for(served):
    assert not any("usage" in chunk for chunk in served.chunks())
    last = served.chunks(stream_options={"include_usage": True})[-1]
    assert last["choices"] == []
    assert last["usage"] == served.ask().json()["usage"]


def test_every_pass_is_told(served):
    chunks = served.chunks(stream_mode="denoise", edges=True)
    done = served.lm.generate(PROMPT, max_new_tokens=16, early_stop=True, record_edges=True)
    head = next(chunk["denoise_head"] for chunk in chunks if "denoise_head" in chunk)
    assert head["slots"] == done.trace.slots
    assert head["label"] == DEFAULT_STRATEGY
    records = [chunk["denoise"] for chunk in chunks if "denoise" in chunk]
    expected = done.trace.steps[: len(records)]
    assert [record["positions"] for record in records] == [step.positions for step in expected]
    assert [record["tokens"] for record in records] == [step.tokens for step in expected]
    assert [record["masks_left"] for record in records] == [step.masks_left for step in expected]
    assert all(record["revoked"] == [] and "edges" in record for record in records)
    assert said(chunks) == done.text


@pytest.mark.parametrize("blocks", [{}, {"block_length": 8}, {"block_length": 8, "reuse": "prefix"}], ids=str)
def test_graphs_are_those_of_the_trace(served, blocks):
    fields = {"strategy": "dapd-staged", "eos": "ban", **blocks}
    records = [c["denoise"] for c in served.chunks(stream_mode="denoise", edges=True, **fields) if "denoise" in c]
    trace = served.lm.generate(PROMPT, max_new_tokens=16, early_stop=True, record_edges=True, **fields).trace
    left = list(trace.slots)
    assert any(step.edges for step in trace.steps)
    for record, step in zip(records, trace.steps, strict=True):
        assert record["edges"] == live(step, left)["edges"]
        left = [place for place in left if place not in step.positions]


def test_the_engine_keeps_no_list_of_edges(lm):
    """A list of them takes a hundred bytes for each: five hundred new tokens filled gigabytes."""
    work = Work(lm.canvas(PROMPT, 64), setting("dapd-staged").strategy, Options(record_edges=True), 0, 5, per_pass=True)
    heard = []
    job = Job(lm, work, 0, heard.append, 1e9)
    for step in decode(lm.network, [work.canvas], work.strategy, work.options):
        job.add(step)
    assert all(passed.edges for passed in heard)
    assert all(record.edges is None for record in job.recorder.trace.steps)


def test_several_choices_share_a_stream(served):
    chunks = served.chunks(n=2, temperature=0.8, seed=1)
    whole = served.ask(n=2, temperature=0.8, seed=1).json()["choices"]
    for index in range(2):
        mine = [chunk for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert said(mine) == whole[index]["text"]


@pytest.mark.parametrize("extra", [{}, {"stream_mode": "denoise"}], ids=str)
def test_the_stock_client_reads_the_stream(chatting, extra):
    client = openai.OpenAI(base_url=f"{chatting.base}/v1", api_key="none", max_retries=0)
    stream = client.chat.completions.create(
        model="lab", stream=True, stream_options={"include_usage": True}, extra_body=extra, **CHAT
    )
    text, passes, usage = "", 0, None
    for chunk in stream:
        usage = chunk.usage or usage
        passes += getattr(chunk, "denoise", None) is not None
        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
    assert text == chatting.lm.generate(CHAT["messages"], max_new_tokens=24, early_stop=True).text
    assert usage.passes > 0
    assert passes == (usage.passes if extra else 0)


def test_infilling_streams_as_well(served):
    chunks = served.chunks("infill", template="It is [MASK*4]!", stream_mode="denoise")
    assert said(chunks) == served.lm.infill("It is [MASK*4]!").text
    assert any("denoise" in chunk for chunk in chunks)


class TestTranscript:
    """What is held back."""

    def transcript(self, lm, stops=()):
        self.canvas = Canvas.blank([65], 12, mask_id=lm.network.profile.mask_id)
        return Transcript(lm, self.canvas, 1, stops)

    def put(self, at: int, text: str | bytes) -> Canvas:
        data = text.encode() if isinstance(text, str) else text
        self.canvas = self.canvas.fix({1 + at + i: byte for i, byte in enumerate(data)})
        # Fixing takes a slot away; the masks that are left are all that matters here.
        return self.canvas

    def test_only_the_contiguous_beginning_is_text(self, lm):
        read = self.transcript(lm)
        assert read.read(self.put(2, "cd")) == ""
        assert read.read(self.put(0, "ab")) == "abcd"

    def test_half_a_character_waits(self, lm):
        read = self.transcript(lm)
        assert read.read(self.put(0, b"a\xe6\x97")) == "a"
        assert read.read(self.put(3, b"\xa5")) == "日"

    def test_what_the_tokenizer_writes_otherwise_later_does_not_end_the_text(self, lm, monkeypatch):
        """As those of BERT do, which take spaces away before what is left of a word."""
        write = lm.tokenizer.decode
        monkeypatch.setattr(lm.tokenizer, "decode", lambda ids: write(ids).replace(" 's", "'s"))
        read = self.transcript(lm)
        assert read.read(self.put(0, "it '")) == "it '"
        assert read.read(self.put(4, "s no")) == "'s no"
        assert read.read(self.put(8, "w")) == "w"
        assert read.text == "it's now"

    def test_the_beginning_of_a_stop_string_waits(self, lm):
        read = self.transcript(lm, ["xyz"])
        assert read.read(self.put(0, "abxy")) == "ab"
        assert read.read(self.put(4, "q")) == "xyq"
        assert read.read(self.put(5, "xyz")) == ""
        assert (read.text, read.stopped, read.finish_reason) == ("abxyq", True, "stop")

    def test_a_stop_string_behind_a_gap_does_not_count(self, lm):
        read = self.transcript(lm, ["!"])
        assert read.read(self.put(3, "!")) == ""
        assert not read.stopped
        assert read.read(self.put(0, "abc")) == "abc"
        assert read.stopped

    def test_the_earliest_stop_string_wins(self, lm):
        read = self.transcript(lm, ["d", "bc", "b"])
        assert read.read(self.put(0, "abcd")) == "a"
        assert read.stopped

    def test_the_end_of_the_text_is_no_text(self, lm):
        read = self.transcript(lm)
        self.put(0, "ab")
        canvas = self.canvas.fix({3: lm.network.profile.eos_id})
        assert read.read(canvas) == "ab"
        assert read.stopped
