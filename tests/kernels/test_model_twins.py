"""Whole models of both families, with the kernels and without them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dapd import kernels
from dapd.models import Capture, KVCache, KVPool, Profile, TransformerConfig, random
from kernels.twins import DEVICE, PRODUCTS, needs_kernels

pytestmark = needs_kernels

L = 14
LLADA = TransformerConfig(
    n_layers=2, d_model=64, n_heads=4, n_kv_heads=4, d_mlp=96, vocab_size=61, max_length=64,
    profile=Profile(mask_id=57, eos_id=58, pad_id=58),
)  # fmt: skip
DREAM = replace(LLADA, n_kv_heads=2, norm_eps=1e-6, qkv_bias=True, rope_fp32=False, lookback=1)
TOLERANCE = {torch.float32: (2e-5, 1e-6), torch.float16: (2e-2, 1e-3), torch.bfloat16: (1e-1, 1e-2)}
"""Of the logits and of the attention."""


@pytest.fixture(params=["llada", "dream"])
def config(request):
    return LLADA if request.param == "llada" else DREAM


def canvas(padded):
    ids = torch.randint(0, 50, (2, L), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    return ids, torch.arange(L, device=DEVICE) >= torch.tensor([[0], [4]], device=DEVICE) if padded else None


@pytest.mark.parametrize(("dtype", "padded"), [(PRODUCTS[0], False), (PRODUCTS[0], True), (PRODUCTS[1], True)])
def test_a_pass(config, dtype, padded):
    network = random(config, dtype=dtype, device=DEVICE)
    (ids, valid), window = canvas(padded), slice(6, L)
    capture = Capture(frozenset({0, 1}), rows="predictor")
    got = network(ids, slice(0, L), window, valid=valid, capture=capture)
    with kernels.disabled():
        want = network(ids, slice(0, L), window, valid=valid, capture=capture)
    for ours, theirs, atol in zip(vars(got).values(), vars(want).values(), TOLERANCE[dtype], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("named", [False, True], ids=["a slice", "columns of each row"])
def test_a_cached_pass(config, padded, named):
    network = random(config, device=DEVICE)
    (ids, valid), span, window = canvas(padded), slice(6, 12), slice(7, 12)
    if named:
        span = torch.tensor([[6, 7, 8, 11, 11], [6, 8, 9, 10, 11]], device=DEVICE)
    found = []
    for enabled in (True, False):
        cache, capture = KVCache(KVPool(2, L)), Capture(frozenset({0, 1}), keys="canvas")
        with torch.no_grad():
            if enabled:
                network(ids, slice(0, L), window, valid=valid, cache=cache)
                found.append(network(ids, span, window, valid=valid, cache=cache, capture=capture))
            else:
                with kernels.disabled():
                    network(ids, slice(0, L), window, valid=valid, cache=cache)
                    found.append(network(ids, span, window, valid=valid, cache=cache, capture=capture))
    torch.testing.assert_close(found[0].logits, found[1].logits, rtol=0, atol=2e-5)
    torch.testing.assert_close(found[0].attention, found[1].attention, rtol=0, atol=1e-6)


def test_training_goes_the_torch_way(config):
    """The kernels have no backward pass."""
    network = random(config, device=DEVICE).requires_grad_(True)
    ids, _ = canvas(padded=False)
    network(ids, slice(0, L), slice(0, L)).logits.square().mean().backward()
    for name, weight in network.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.abs().sum() > 0, name


def test_float64_goes_the_torch_way(config):
    network = random(replace(config, rope_fp32=False), device=DEVICE, dtype=torch.float64)
    ids, _ = canvas(padded=False)
    assert network(ids, slice(0, L), slice(0, L)).logits.dtype == torch.float64
