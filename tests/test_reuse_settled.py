"""Reuse of settled columns: what is computed, and that nothing but the approximation changes."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from dapd import PRESETS, DapdError, Options, decode, engine
from dapd.kernels.rotary import Kept
from dapd.models import Transformer
from dapd.models.cache import KVCache
from dapd.models.columns import place, spread, take
from dapd.strategies import Dapd, Threshold, TopK
from reference.models import PROMPTS, build
from reference.ours import blank, run

DECODERS = {name: strategy for name, strategy in PRESETS.items() if strategy.sees != "canvas"} | {
    "dapd, wide": Dapd(0.05, 0.6),
    "dapd, predictor rows": Dapd(0.05, 0.6, rows="predictor"),
}
SETTLED = Options(reuse="settled")


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch):
    monkeypatch.setattr(engine, "COLUMN_BUCKET", 1)


@dataclass
class Watched:
    """A model that notes the columns it is asked to compute."""

    inner: Transformer
    spans: list[Any] = field(default_factory=list)

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def __call__(self, tokens, span, window, **more):
        self.spans.append([*range(tokens.shape[1])[span]] if isinstance(span, slice) else span.tolist())
        return self.inner(tokens, span, window, **more)


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("name", list(DECODERS))
@pytest.mark.parametrize("block_length", [None, 4])
def test_with_nothing_settled_it_is_no_reuse(family, name, block_length):
    """The same columns, gathered row by row: positions, tokens and passes."""
    model, plain = build(family, 1, sharpness=5.0), Options(block_length=block_length)
    batch = blank(model, PROMPTS, 8)
    settled = replace(plain, reuse="settled", settle=1000)
    assert run(model, batch, DECODERS[name], settled) == run(model, batch, DECODERS[name], plain)


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("bucket", [1, 32])
def test_rows_do_not_depend_on_their_neighbours(family, bucket, monkeypatch):
    monkeypatch.setattr(engine, "COLUMN_BUCKET", bucket)
    model = build(family, 1, sharpness=5.0)
    for strategy in (TopK(), Threshold(0.5), Dapd(0.05, 0.6), Dapd(0.05, 0.6, rows="predictor")):
        for options in (SETTLED, replace(SETTLED, settle=2, refresh=3, block_length=4)):
            batch = run(model, blank(model, PROMPTS, 8), strategy, options)
            single = [run(model, blank(model, [row], 8), strategy, options)[0] for row in PROMPTS]
            assert batch == single
            assert batch == run(model, blank(model, PROMPTS, 8), strategy, options), "twice the same"
            assert all(45 not in row.tokens for row in batch)


@pytest.mark.parametrize(("family", "back"), [("llada", 0), ("dream", 1)])
def test_the_columns_are_masks_their_predictors_and_recent_tokens(family, back):
    model = Watched(build(family, 1))
    steps = list(decode(model, blank(model.inner, [PROMPTS[0]], 8), TopK(), SETTLED))
    assert model.spans[0] == list(range(13)), "the first pass is over everything"
    for number in range(1, 8):
        masked = {int(c) for c in steps[number - 1].canvas.masked[0].nonzero()}
        recent = {5 + int(c) for c in steps[number - 1].commit[0].nonzero()}
        assert set(model.spans[number][0]) == masked | recent | {c - back for c in masked}
    counts = [len(span[0]) for span in model.spans[1:]]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] <= 2 + back < 13, "the cost falls with the masks"


def over_the_window(self, h, at, window, valid):
    """Logits of every column of the window, whatever was computed."""
    return self.head(self._predictors(spread(h, *at), 0, window, valid))


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[:1]], ids=["padded", "one row"])
@pytest.mark.parametrize("settle", [1, 3, 1000])
def test_the_head_sees_no_more_than_it_must_and_says_the_same(family, prompts, settle, monkeypatch):
    model, options = build(family, 1, sharpness=5.0), replace(SETTLED, settle=settle)
    rows, head = [], model.head.forward
    monkeypatch.setattr(model.head, "forward", lambda h: (rows.append(h.shape[1]), head(h))[1])
    for strategy in (TopK(), Threshold(0.5), Dapd(0.05, 0.6)):
        rows.clear()
        batch = blank(model, prompts, 8)
        found = [(step.token, step.confidence) for step in decode(model, batch, strategy, options)]
        assert max(rows) == 8
        assert (min(rows) < 8) == (settle < 1000) or strategy != TopK()
        with monkeypatch.context() as patch:
            patch.setattr(Transformer, "_logits_of", over_the_window)
            steps = list(decode(model, batch, strategy, options))
        assert len(found) == len(steps)
        for (token, confidence), step in zip(found, steps, strict=True):
            assert torch.equal(token, step.token)
            torch.testing.assert_close(confidence, step.confidence)


def test_refresh_computes_everything():
    model = Watched(build("llada", 1))
    list(decode(model, blank(model.inner, [PROMPTS[0]], 8), TopK(), replace(SETTLED, refresh=3)))
    assert [number for number, span in enumerate(model.spans) if len(span) == 13] == [0, 3, 6]


def test_it_is_an_approximation_that_differs():
    """Otherwise nothing would be reused."""
    model = build("llada", 3, sharpness=5.0)
    batch = blank(model, PROMPTS, 12)
    confidences = [
        torch.stack([step.confidence for step in decode(model, batch, TopK(), options)])
        for options in (Options(), SETTLED)
    ]
    assert not torch.allclose(*confidences)
    torch.testing.assert_close(confidences[0][0], confidences[1][0])


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"settle": 0, "reuse": "settled"}, "settle is 0"),
        ({"settle": 2}, "reuse is not settled"),
        ({"settle": 2, "reuse": "dual"}, "reuse is not settled"),
        ({"reuse": "setled"}, "did you mean 'settled'"),
    ],
)
def test_options_that_make_no_sense(fields, complaint):
    with pytest.raises(DapdError, match=complaint):
        Options(**fields)
    with pytest.raises(DapdError, match="reuse must be none"):
        decode(build("llada", 1), blank(build("llada", 1), PROMPTS, 4), PRESETS["dawn"], SETTLED)


def test_columns_row_by_row():
    span = torch.tensor([[1, 3, 3], [0, 2, 4]])
    assert take(torch.arange(10).view(2, 5), span).tolist() == [[1, 3, 3], [5, 7, 9]]
    slot, known = place(span, 5)
    assert known.tolist() == [[False, True, False, True, False], [True, False, True, False, True]]
    assert slot[known].tolist() == [0, 2, 0, 1, 2]
    rows = torch.arange(1.0, 7.0).view(2, 3, 1)
    assert spread(rows, slot[:, 1:], known[:, 1:]).flatten(1).tolist() == [[1, 0, 3, 0], [0, 5, 0, 6]]


def test_a_cache_that_is_written_row_by_row():
    cache, shape, like = KVCache(), (2, 1, 5, 2), torch.zeros(1)
    with pytest.raises(DapdError, match="before a pass over the whole"):
        cache.room(0, shape, like, whole=False)
    k, v = cache.room(0, shape, like, whole=True)
    k.zero_()
    v.zero_()
    new = torch.tensor([[[[1.0, 2.0]]], [[[3.0, 4.0]]]])
    Kept(*cache.room(0, shape, like, whole=False), torch.tensor([[4], [1]])).put(new, -new)
    assert k[0, 0, 4].tolist() == [1, 2]
    assert v[1, 0, 1].tolist() == [-3, -4]
    assert float(k.abs().sum()) == 10
    for other in ((1, 1, 5, 2), (2, 1, 6, 2)):
        with pytest.raises(DapdError, match=r"holds 2 rows of 5 columns; the canvas has \d of \d"):
            cache.room(0, other, like, whole=False)
    Kept(k, v, slice(2, 3)).put(7 * new, new)
    assert k[1, 0, 2].tolist() == [21, 28]
    assert cache.room(0, shape, like, whole=True)[0].data_ptr() == k.data_ptr(), "recorded passes know where it lies"
    assert cache.room(0, (3, 1, 5, 2), like, whole=True)[0].shape == (3, 1, 5, 2), "another canvas has other room"


@pytest.mark.parametrize("reuse", ["prefix", "settled"])
@pytest.mark.parametrize("strategy", [TopK(), Dapd()], ids=["topk", "dapd"])
def test_reuse_under_autocast(reuse, strategy):
    """Keys and values have the dtype that autocast gives the projection, not that of the model."""
    model = build("llada", 1, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        *_, last = decode(model, blank(model, PROMPTS, 8), strategy, Options(reuse=reuse, refresh=3))
    assert not last.canvas.masked.any()
