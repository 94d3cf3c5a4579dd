"""Reuse of settled columns: what is computed, and that nothing but the approximation changes."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from dapd import PRESETS, DapdError, Options, decode
from dapd.models import KVCache, KVPool, Transformer
from dapd.models.columns import take
from dapd.strategies import Dapd, Threshold, TopK
from reference.models import PROMPTS, build
from reference.ours import blank, run

DECODERS = {name: strategy for name, strategy in PRESETS.items() if strategy.needs.sees != "canvas"} | {
    "dapd, wide": Dapd(0.05, 0.6),
    "dapd, predictor rows": Dapd(0.05, 0.6, rows="predictor"),
}
SETTLED = Options(reuse="settled")


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
def test_rows_do_not_depend_on_their_neighbours(family):
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
        masked = {int(c) for c in steps[number - 1].canvas.masked.nonzero()}
        recent = {5 + int(c) for c in steps[number - 1].commit.nonzero()}
        assert set(model.spans[number][0]) == masked | recent | {c - back for c in masked}
    counts = [len(span[0]) for span in model.spans[1:]]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] <= 2 + back < 13, "the cost falls with the masks"


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[:1]], ids=["padded", "one row"])
@pytest.mark.parametrize("settle", [1, 3, 1000])
def test_the_head_sees_no_more_than_it_must(family, prompts, settle, monkeypatch):
    """The columns that were computed, or those of the window, whichever are fewer."""
    model, options = build(family, 1, sharpness=5.0), replace(SETTLED, settle=settle)
    rows, head = [], model.head.forward
    monkeypatch.setattr(model.head, "forward", lambda h: (rows.append(h.shape[1]), head(h))[1])
    for strategy in (TopK(), Threshold(0.5), Dapd(0.05, 0.6)):
        rows.clear()
        list(decode(model, blank(model, prompts, 8), strategy, options))
        assert max(rows) == 8
        assert (min(rows) < 8) == (settle < 1000) or strategy != TopK()


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
    torch.testing.assert_close(confidences[0][:3], confidences[1][:3])


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
    """Columns by name, of everything or of what was computed; a row with fewer columns repeats its last one."""
    values = torch.arange(10).view(2, 5)
    span = torch.tensor([[1, 3, 3], [0, 2, 4]])
    computed = take(values, span)
    assert computed.tolist() == [[1, 3, 3], [5, 7, 9]]
    assert take(values, slice(1, 3)).tolist() == [[1, 2], [6, 7]]
    assert take(computed, torch.tensor([[3], [2]]), of=span).tolist() == [[3], [7]]
    assert take(computed, torch.tensor([[1, 3], [0, 4]]), of=span).tolist() == [[1, 3], [5, 9]]
    part = values[:, 1:4]
    assert take(part, slice(2, 4), of=slice(1, 4)).tolist() == [[2, 3], [7, 8]]
    assert take(part, slice(0, 2), of=slice(1, 4)).tolist() == [[1, 1], [6, 6]], "for what is lacking, another one"
    assert take(part, torch.tensor([[1, 2], [2, 3]]), of=slice(1, 4)).tolist() == [[1, 2], [7, 8]]
    heads = torch.arange(12.0).view(1, 2, 3, 2)
    assert take(heads, torch.tensor([[2, 0]]), dim=2).tolist() == heads[:, :, [2, 0]].tolist()


def test_keys_and_values_are_kept_row_by_row():
    pool = KVPool(2, 5)
    everything = torch.zeros(2, 2, 5, 3)
    kept = KVCache(pool).update(0, everything, slice(0, 5))
    assert torch.equal(kept, everything)
    new = torch.arange(1.0, 13.0).view(2, 2, 1, 3)
    kept = KVCache(pool).update(0, new, torch.tensor([[4], [1]]))
    assert kept[0, 1, 4].tolist() == [4, 5, 6]
    assert kept[1, 0, 1].tolist() == [7, 8, 9]
    assert float(kept.sum()) == 78
    some = KVCache(pool, torch.tensor([1])).update(0, 10 * new[:1], slice(2, 3))
    assert some.shape == (1, 2, 5, 3)
    assert some[0, :, 1].tolist() == kept[1, :, 1].tolist()
    assert some[0, 0, 2].tolist() == [10, 20, 30]
    assert pool.layer(0, new)[1, 0, 2].tolist() == [10, 20, 30], "it is kept in the pool"
    assert pool.layer(0, new).data_ptr() == kept.data_ptr(), "recorded passes know where it lies"
    larger = pool.grown(3, 7)
    assert torch.equal(larger.layer(0, new)[:2, :, 2:], pool.layer(0, new)), "columns are aligned on the right"
    assert (larger.rows, larger.length) == (3, 7)


@pytest.mark.parametrize("reuse", ["prefix", "settled"])
@pytest.mark.parametrize("strategy", [TopK(), Dapd()], ids=["topk", "dapd"])
def test_reuse_under_autocast(reuse, strategy):
    """Keys and values have the dtype that autocast gives the projection, not that of the model."""
    model = build("llada", 1, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        steps = list(decode(model, blank(model, PROMPTS, 8), strategy, Options(reuse=reuse, refresh=3)))
    assert sum(step.done for step in steps) == len(PROMPTS)
