"""What a server asks of the core: biased logits, the likeliest tokens of a pass, a constraint that picks the tokens."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import dapd
from dapd.canvas import Canvas
from dapd.decoding import Decoder, decode
from dapd.errors import DapdError
from dapd.settings import read_settings


@pytest.fixture(scope="module")
def lm():
    return dapd.load("random:tiny-llada", device="cpu")


class Alphabet:
    """Only these tokens: the simplest constraint there is."""

    def __init__(self, *tokens: int) -> None:
        self.allowed = torch.tensor(tokens)
        self.calls = 0

    def check(self, canvas: Canvas) -> None:
        if canvas.n_new is None:
            raise DapdError("not for templates")

    def tokens(self, scores: Tensor, canvas: Canvas, window: slice) -> Tensor:
        self.calls += 1
        return self.allowed[scores[:, self.allowed].argmax(-1)]

    def forced(self, canvas: Canvas, window: slice) -> Tensor:
        return torch.zeros_like(canvas.masked[window])


def test_a_large_bias_decides_and_is_seen_in_the_confidence(lm):
    plain = lm.generate("hello", max_new_tokens=12)
    biased = lm.generate("hello", max_new_tokens=12, bias=((65, 1000.0),))
    assert biased.text == "A" * 12 != plain.text
    assert min(c for record in biased.trace.steps for c in record.confidences) > 0.99


def test_a_negative_bias_bans(lm):
    text = lm.generate("hello", max_new_tokens=12, bias=tuple((i, -1e4) for i in range(256) if i != 66), eos="ban").ids
    assert all(i == 66 or i >= 256 for i in text)


def test_a_bias_outside_of_the_vocabulary_is_refused(lm):
    with pytest.raises(DapdError, match="bias names token id"):
        lm.generate("hello", max_new_tokens=4, bias=((10**6, 1.0),))


def test_a_bias_reads_from_text():
    assert read_settings("dapd-staged", ["bias=5:1.5,7:-2"])[1].sampling.bias == ((5, 1.5), (7, -2.0))
    with pytest.raises(DapdError, match="pairs such as"):
        read_settings("dapd-staged", ["bias=5"])


def test_the_likeliest_tokens_come_with_the_step_that_committed(lm):
    canvas = lm.canvas("hello", 8)
    setting, options = read_settings("dapd-staged", ["record_top=3"])
    for step in decode(lm.network, [canvas], setting.strategy, options):
        assert step.top is not None
        assert step.top.token.shape == step.top.log_p.shape == (8, 3)
        for place in step.commit.nonzero().flatten().tolist():
            assert int(step.top.token[place, 0]) == int(step.token[place])
            assert float(step.top.log_p[place, 0]) == pytest.approx(math.log(step.confidence[place]), abs=1e-4)


def test_tokens_that_are_ruled_out_are_not_among_the_likeliest_of_a_trace(lm):
    """Their log-probability is the lowest number that there is."""
    done = lm.generate("hello", max_new_tokens=8, record_top=5, top_k=2)
    likeliest = [row for record in done.trace.steps for row in record.top]
    assert [len(row) for row in likeliest] == [2] * 8
    assert all(log_p > -100 for row in likeliest for _, log_p, _ in row)


@pytest.mark.parametrize("name", ["original", "fast-dllm", "eb-sampler", "klass", "dapd-staged", "dapd-direct", "dawn"])
def test_every_decoder_commits_what_the_constraint_picks(lm, name):
    constraint = Alphabet(65, 66, 67)
    setting, options = read_settings(name, [])
    steps = list(decode(lm.network, [lm.canvas("x", 16)], setting.strategy, options, constraint=constraint))
    assert set(steps[-1].canvas.tokens[1:].tolist()) <= {65, 66, 67}
    assert constraint.calls == len(steps)


def test_a_constrained_row_leaves_its_neighbour_alone(lm):
    alone = lm.generate("hello", max_new_tokens=16)
    decoder = Decoder(lm.network)
    setting, options = read_settings("dapd-staged", [])
    decoder.admit(lm.canvas("hello", 16), setting.strategy, options, name="free")
    decoder.admit(lm.canvas("hello", 16), setting.strategy, options, name="bound", constraint=Alphabet(65, 66))
    last = {step.row: step for step in decoder.steps()}
    assert last["free"].canvas.tokens[5:].tolist() == alone.ids
    assert set(last["bound"].canvas.tokens[5:].tolist()) <= {65, 66}


def test_a_constraint_may_refuse_a_canvas(lm):
    with pytest.raises(DapdError, match="not for templates"):
        Decoder(lm.network).admit(
            lm.template("a[MASK]b"), read_settings("original", [])[0].strategy, constraint=Alphabet(1)
        )


class Ending(Alphabet):
    """The last position is always the same token."""

    def forced(self, canvas: Canvas, window: slice) -> Tensor:
        last = torch.arange(canvas.length) == canvas.length - 1
        return (last & canvas.masked)[window]


@pytest.mark.parametrize("reuse", ["prefix", "dual"])
@pytest.mark.parametrize("block_length", [None, 4])
def test_a_forced_token_does_not_keep_the_first_of_a_block_waiting(reuse, block_length):
    """Dream's later passes compute no column that predicts it: the first pass commits it beside what is forced."""
    model = dapd.load("random:tiny-dream", device="cpu")
    canvas = model.canvas("hello", 8)
    options = dapd.Options(reuse=reuse, block_length=block_length)
    seen: set[int] = set()
    for step in decode(model.network, [canvas], dapd.TopK(), options, constraint=Ending(*range(65, 80))):
        if step.window.start not in seen:
            assert bool(step.commit[0]), "the first position of a block"
            assert bool(step.commit[-1]) == (step.window.stop == canvas.length)
        seen.add(step.window.start)
    assert len(seen) == (1 if block_length is None else 2)
