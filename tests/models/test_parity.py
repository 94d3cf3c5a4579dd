"""The body against Hugging Face's Llama and Qwen2 under a full mask: logits, attention, padding, cached spans."""

from __future__ import annotations

import pytest
import torch

from dapd.kernels import attention, rotary
from dapd.models import Capture, KVCache, KVPool, transformer
from helpers_models import CONFIGS, DREAM, LLADA, build, full, hf_forward, hf_twin, left_padded, tokens

L = 13


@pytest.fixture(scope="module", params=CONFIGS)
def pair(request):
    """A model of ours and its twin."""
    network = build(CONFIGS[request.param])
    return network, hf_twin(network)


def shifted(logits, lookback):
    """Dream's use of its logits: [L0, L0, L1, ...]."""
    return torch.cat((logits[:, :lookback], logits[:, : logits.shape[1] - lookback]), 1)


def test_logits(pair):
    network, twin = pair
    ids = tokens(3, L)
    want = hf_forward(twin, ids).logits
    assert want.std() > 0.5
    torch.testing.assert_close(full(network, ids).logits, shifted(want, network.lookback), rtol=0, atol=1e-4)


def test_logits_without_a_mask_argument():
    network = build(DREAM)
    twin = hf_twin(network)
    twin.config.is_causal = False
    ids = tokens(2, L)
    with torch.no_grad():
        want = twin(ids).logits
    torch.testing.assert_close(full(network, ids).logits, shifted(want, 1), rtol=0, atol=1e-4)


def test_logits_see_both_sides(pair):
    """A change at the last column reaches the first: the comparison above is not one of causal models."""
    network, _ = pair
    ids = tokens(1, L)
    other = ids.clone()
    other[0, -1] = (ids[0, -1] + 1) % 50
    assert not torch.allclose(full(network, ids).logits[:, 0], full(network, other).logits[:, 0], atol=1e-3)


def keep(rows):
    """Room for the keys and values of some rows."""
    return KVCache(KVPool(rows, L))


def test_logits_of_a_window_are_a_slice(pair):
    network, _ = pair
    ids = tokens(2, L)
    part = network(ids, slice(0, L), slice(4, 9)).logits
    torch.testing.assert_close(part, full(network, ids).logits[:, 4:9], rtol=0, atol=1e-5)


@pytest.mark.parametrize("rows", [None, "position", "predictor"])
@pytest.mark.parametrize("window", [slice(5, 9), torch.tensor([[5, 6, 7, 8], [2, 3, 4, 5]])], ids=["slice", "by row"])
def test_the_last_layer_computes_the_rows_that_are_read(pair, rows, window):
    network, _ = pair
    counts = []
    hook = network.layers[-1].down_proj.register_forward_hook(lambda module, inputs, out: counts.append(out.shape[1]))
    capture = None if rows is None else Capture(frozenset({2, 3}), rows=rows, keys="canvas")
    network(tokens(2, L), slice(0, L), window, capture=capture)
    hook.remove()
    assert counts == [4 + network.lookback]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("rows", ["position", "predictor"])
def test_windows_at_another_place_in_every_row(pair, padded, rows):
    """What is predicted and captured for columns of each row is what a pass for that row's columns gives."""
    network, _ = pair
    ids, valid = left_padded(L, L - 3) if padded else (tokens(2, L), None)
    starts, capture = (5, 3), Capture(frozenset({1, 3}), rows=rows)
    window = torch.tensor([[start + i for i in range(4)] for start in starts])
    got = network(ids, slice(0, L), window, valid=valid, capture=capture)
    for row, start in enumerate(starts):
        want = network(ids, slice(0, L), slice(start, start + 4), valid=valid, capture=capture)
        torch.testing.assert_close(got.logits[row], want.logits[row], rtol=0, atol=2e-5)
        torch.testing.assert_close(got.attention[row], want.attention[row], rtol=0, atol=1e-6)


def test_padded_logits(pair):
    network, twin = pair
    ids, valid = left_padded(L, 7, 3)
    got, want = full(network, ids, valid=valid).logits, hf_forward(twin, ids, valid).logits
    for row, n in enumerate((L, 7, 3)):
        torch.testing.assert_close(
            got[row, L - n :], shifted(want[row : row + 1, L - n :], network.lookback)[0], rtol=0, atol=1e-4
        )


def test_padded_batch_equals_single_rows(pair):
    network, _ = pair
    ids, valid = left_padded(L, 8, 2)
    capture = Capture(frozenset({1, 3}))
    together = full(network, ids, valid=valid, capture=capture)
    for row, n in enumerate((L, 8, 2)):
        alone = full(network, ids[row : row + 1, L - n :], capture=capture)
        torch.testing.assert_close(together.logits[row, L - n :], alone.logits[0], rtol=0, atol=2e-5)
        torch.testing.assert_close(together.attention[row, L - n :, L - n :], alone.attention[0], rtol=0, atol=1e-6)
        assert (together.attention[row, :, : L - n] == 0).all()


@pytest.mark.parametrize("layers", [{0}, {3}, {1, 3}, {0, 1, 2, 3}], ids=str)
@pytest.mark.parametrize("keys", ["window", "canvas"])
@pytest.mark.parametrize("padded", [False, True])
def test_captured_attention(pair, layers, keys, padded):
    network, twin = pair
    ids, valid = left_padded(L, 10) if padded else (tokens(2, L), None)
    window = slice(5, 11)
    got = network(ids, slice(0, L), window, valid=valid, capture=Capture(frozenset(layers), keys=keys)).attention
    maps = hf_forward(twin, ids, valid).attentions
    columns = window if keys == "window" else slice(0, L)
    want = torch.stack([maps[layer] for layer in layers]).mean((0, 2))[:, window, columns]
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)


def test_captured_attention_is_a_part_of_a_softmax(pair):
    """Over the canvas the rows sum to 1; over the window they are the same numbers, not renormalised."""
    network, _ = pair
    ids, window = tokens(2, L), slice(6, L)
    canvas = network(ids, slice(0, L), window, capture=Capture(frozenset({2}), keys="canvas")).attention
    part = network(ids, slice(0, L), window, capture=Capture(frozenset({2}))).attention
    torch.testing.assert_close(canvas.sum(-1), torch.ones(2, L - 6))
    torch.testing.assert_close(part, canvas[..., window])


def test_attention_of_the_columns_that_predict(pair):
    """What a strategy that reads the predictors' rows asks for."""
    network, twin = pair
    ids, back = tokens(1, L), network.lookback
    got = network(ids, slice(0, L), slice(5, 9), capture=Capture(frozenset({1}), rows="predictor")).attention
    want = hf_forward(twin, ids).attentions[1].mean(1)[:, 5 - back : 9 - back, 5:9]
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)


def test_capture_in_small_pieces_is_the_same(pair, monkeypatch):
    network, _ = pair
    ids, valid = left_padded(L, 9)
    capture = Capture(frozenset({0, 2}), keys="canvas")
    at_once = full(network, ids, valid=valid, capture=capture).attention
    monkeypatch.setattr(attention, "ELEMENTS", 1)
    torch.testing.assert_close(full(network, ids, valid=valid, capture=capture).attention, at_once)


def test_nothing_is_captured_unasked(pair):
    assert full(pair[0], tokens(1, 4)).attention is None


@pytest.mark.parametrize("stop", [9, L], ids=["dual", "prefix"])
@pytest.mark.parametrize("padded", [False, True])
def test_cached_span_equals_the_full_pass(pair, stop, padded):
    network, _ = pair
    ids, valid = left_padded(L, 10) if padded else (tokens(2, L), None)
    cache, span = keep(2), slice(5, stop)
    window = slice(5 + network.lookback, 9)
    capture = Capture(frozenset({1, 3}), keys="canvas")
    first = full(network, ids, valid=valid, cache=cache)
    want = network(ids, slice(0, L), window, valid=valid, capture=capture)
    for _ in range(2):
        got = network(ids, span, window, valid=valid, cache=cache, capture=capture)
        torch.testing.assert_close(got.logits, first.logits[:, window], rtol=0, atol=2e-5)
        torch.testing.assert_close(got.attention, want.attention, rtol=0, atol=1e-6)


def test_cached_span_takes_new_tokens_and_keeps_old_keys(pair):
    """The span's own columns are recomputed from what stands there now; the rest is as stale as it was."""
    network, _ = pair
    ids, span = tokens(1, L), slice(4, 9)
    changed = ids.clone()
    changed[0, 6] = (ids[0, 6] + 1) % 50
    cache = keep(1)
    before = full(network, ids, cache=cache).logits
    after = network(changed, span, span, cache=cache).logits
    assert not torch.allclose(after[:, 3:], before[:, 7:9], atol=1e-3)
    assert not torch.allclose(after, full(network, changed).logits[:, span], atol=1e-4)
    back = network(ids, span, span, cache=cache).logits
    lookback = network.lookback
    torch.testing.assert_close(back[:, lookback:], before[:, 4 + lookback : 9], rtol=0, atol=2e-5)


def test_a_full_pass_refreshes_the_cache(pair):
    network, _ = pair
    old, new, span = tokens(1, L), tokens(1, L, seed=1), slice(6, 9)
    cache = keep(1)
    full(network, old, cache=cache)
    want = full(network, new, cache=cache).logits[:, 7:9]
    torch.testing.assert_close(network(new, span, slice(7, 9), cache=cache).logits, want, rtol=0, atol=2e-5)


def test_the_cache_stays_where_it_is(pair):
    """Full and partial passes write into the same memory, which a recorded pass relies on."""
    network, _ = pair
    cache, ids = keep(2), tokens(2, L)
    full(network, ids, cache=cache)
    before = {name: kept.data_ptr() for name, kept in cache.pool._layers.items()}
    network(ids, slice(5, 9), slice(6, 9), cache=cache)
    full(network, tokens(2, L, seed=1), cache=cache)
    assert len(before) == network.n_layers
    assert {name: kept.data_ptr() for name, kept in cache.pool._layers.items()} == before


@pytest.mark.parametrize("padded", [False, True])
def test_rows_of_a_pool_and_columns_of_each_row(pair, padded):
    """Two of three rows are computed, each at columns of its own; the third keeps what it had."""
    network, _ = pair
    ids, valid = left_padded(L, L - 2, L) if padded else (tokens(3, L), None)
    cache = keep(3)
    full(network, ids, valid=valid, cache=cache)
    before = cache.pool._layers[0, torch.float32].clone()
    span = torch.tensor([[4, 5, 6, 7, 7], [6, 7, 8, 9, 10]])
    window = torch.tensor([[5, 6, 7], [7, 8, 9]])
    some = torch.tensor([2, 0])
    got = network(
        ids[some], span, window, valid=None if valid is None else valid[some], cache=KVCache(cache.pool, some)
    )
    want = full(network, ids, valid=valid).logits
    torch.testing.assert_close(got.logits[0], want[2, 5:8], rtol=0, atol=2e-5)
    torch.testing.assert_close(got.logits[1], want[0, 7:10], rtol=0, atol=2e-5)
    torch.testing.assert_close(cache.pool._layers[0, torch.float32], before, rtol=0, atol=1e-5)


def test_first_column_of_a_span_without_its_predictor():
    """Dream inside a cached block: the first column's row is not shifted, for the row to its left is not computed."""
    network = build(DREAM)
    ids, cache = tokens(1, L), keep(1)
    full(network, ids, cache=cache)
    raw = hf_forward(hf_twin(network), ids).logits
    got = network(ids, slice(5, 9), slice(5, 9), cache=cache).logits
    torch.testing.assert_close(got, raw[:, [5, 5, 6, 7]], rtol=0, atol=1e-4)


@pytest.mark.parametrize("wide", [True, False])
def test_rotation_is_done_in_the_dtype_of_the_tables(wide):
    """LLaDA rotates in fp32 and casts back, Dream in the model's dtype; in bf16 the two differ."""
    q = torch.randn(1, 2, 5, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    angle = torch.arange(5.0)[:, None] * torch.tensor([1.0, 0.1, 0.01, 0.001]).repeat(2)
    dtype = torch.float32 if wide else torch.bfloat16
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
    x = q.to(dtype)
    want = (x * cos + torch.cat((-x[..., 4:], x[..., :4]), -1) * sin).bfloat16()
    got = rotary.rotate(q, cos, sin)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, want)


@pytest.mark.parametrize(("config", "dtype"), [(LLADA, torch.float32), (DREAM, torch.bfloat16)], ids=["llada", "dream"])
def test_rotary_tables_in_bf16_models(config, dtype):
    cos, _ = build(config).bfloat16()._rotary(slice(2, 6), None)
    assert (cos.dtype, cos.shape) == (dtype, (1, 1, 4, 8))


def test_norm_scales_after_the_cast():
    norm = transformer.RMSNorm(16, 1e-5).bfloat16()
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.5, 2, 16))
    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(0)).bfloat16()
    wide = x.float()
    want = norm.weight * (wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()).bfloat16()
    zero = torch.zeros_like(x)
    total, normed = norm(x, zero)
    torch.testing.assert_close(normed, want, rtol=0.01, atol=0)
    assert normed.dtype == torch.bfloat16
    assert torch.equal(total, x)
    torch.testing.assert_close(norm(x, x).normed, norm(2 * x, zero).normed)


def test_bf16_logits_are_near_and_attention_stays_wide():
    network = build(LLADA)
    ids, capture = tokens(1, L), Capture(frozenset({3}))
    exact = full(network, ids, capture=capture)
    rough = full(network.bfloat16(), ids, capture=capture)
    assert (rough.logits.dtype, rough.attention.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(rough.logits.float(), exact.logits, rtol=0, atol=0.15)
    torch.testing.assert_close(rough.attention, exact.attention, rtol=0, atol=0.02)
