"""What only a GPU can show: real shapes in bf16, flash attention's denominators, recorded passes."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from dapd import kernels
from dapd.kernels import attention
from dapd.kernels.capture import AttentionSum
from dapd.models import Capture, KVCache, KVPool, Profile, TransformerConfig, random
from kernels.twins import needs_gpu, normal

pytestmark = needs_gpu

L, WINDOW = 200, slice(72, 200)
LLADA = TransformerConfig(
    n_layers=4, d_model=512, n_heads=4, n_kv_heads=4, d_mlp=1024, vocab_size=1000, max_length=512,
    profile=Profile(mask_id=990, eos_id=991, pad_id=991),
)  # fmt: skip
DREAM = replace(LLADA, n_heads=8, n_kv_heads=2, norm_eps=1e-6, qkv_bias=True, rope_fp32=False, lookback=1)
TOLERANCE = {torch.float32: (1e-4, 2e-6), torch.bfloat16: (2e-1, 5e-3)}
"""Of the logits and of the attention."""


@pytest.fixture(params=["llada", "dream"])
def config(request):
    return LLADA if request.param == "llada" else DREAM


def canvas(padded):
    ids = torch.randint(0, 900, (2, L), generator=torch.Generator().manual_seed(0)).cuda()
    return ids, torch.arange(L, device="cuda") >= torch.tensor([[0], [37]], device="cuda") if padded else None


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("keys", ["window", "canvas"])
def test_a_pass(config, dtype, padded, keys):
    network = random(config, dtype=dtype, device="cuda")
    ids, valid = canvas(padded)
    for rows in ("position", "predictor"):
        capture = Capture(frozenset({1, 3}), rows, keys)
        got = network(ids, slice(0, L), WINDOW, valid=valid, capture=capture)
        with kernels.disabled():
            want = network(ids, slice(0, L), WINDOW, valid=valid, capture=capture)
        for ours, theirs, atol in zip(vars(got).values(), vars(want).values(), TOLERANCE[dtype], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_gpu_agrees_with_the_cpu(config, dtype):
    ids, valid = canvas(padded=True)
    network, capture = random(config, dtype=dtype), Capture(frozenset({0, 2}))
    want = network(ids.cpu(), slice(0, L), WINDOW, valid=valid.cpu(), capture=capture)
    got = network.cuda()(ids, slice(0, L), WINDOW, valid=valid, capture=capture)
    logits, captured = (max(x, y) for x, y in zip(TOLERANCE[dtype], (2e-3, 1e-5), strict=True))
    torch.testing.assert_close(got.logits.cpu(), want.logits, rtol=0, atol=logits)
    torch.testing.assert_close(got.attention.cpu(), want.attention, rtol=0, atol=captured)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("n_heads", "groups"), [(32, 32), (28, 4)], ids=["llada-8b", "dream-7b"])
@pytest.mark.parametrize(("batch", "window"), [(1, 256), (3, 100)])
def test_capture_at_real_head_sizes(dtype, n_heads, groups, batch, window):
    """Heads of 128, with flash attention's denominators (or the memory-efficient version's, in fp32)."""
    packed = normal(batch, 300, n_heads + 2 * groups, 128, dtype=dtype).transpose(1, 2)
    q, k, v = packed.split((n_heads, groups, groups), 1)
    lse, some = attention.attend_with_lse(q, k, v, None).lse, slice(300 - window, 300)
    found = []
    for context in (nullcontext, kernels.disabled):
        total = AttentionSum()
        for _ in range(2):
            with context():
                total.add(q[:, :, some], k[:, :, some], lse[:, :, some], None)
        found.append(total.mean())
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)
    want = (q.double() @ k.double().repeat_interleave(n_heads // groups, 1).mT / 128**0.5).softmax(-1).mean(1)
    torch.testing.assert_close(found[0].double(), want[:, some, some], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("cached", [False, True])
def test_a_recorded_pass(config, dtype, padded, cached):
    """A CUDA graph of a pass gives what the pass gives, also on tokens it was not recorded with."""
    network = random(config, dtype=dtype, device="cuda")
    ids, valid = canvas(padded)
    cache, span = (KVCache(KVPool(2, L)), slice(WINDOW.start - 1, L)) if cached else (None, slice(0, L))
    capture = Capture(frozenset({1, 3}))

    def step():
        return network(ids, span, WINDOW, valid=valid, cache=cache, capture=capture)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        network(ids, slice(0, L), WINDOW, valid=valid, cache=cache)
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        recorded = step()
    ids.copy_(ids.flip(1) if valid is None else torch.where(valid, (ids + 7) % 900, ids))
    if cached:
        network(ids, slice(0, L), WINDOW, valid=valid, cache=cache)  # fills the buffers that the graph reads
    graph.replay()
    want = step()
    torch.testing.assert_close(recorded.logits, want.logits, rtol=0, atol=TOLERANCE[dtype][0])
    torch.testing.assert_close(recorded.attention, want.attention, rtol=0, atol=TOLERANCE[dtype][1])


def test_a_pass_never_waits_for_the_gpu(config):
    network = random(config, dtype=torch.bfloat16, device="cuda")
    ids, valid = canvas(padded=True)
    capture = Capture(frozenset({1, 3}))
    network(ids, slice(0, L), WINDOW, valid=valid, capture=capture)
    torch.cuda.set_sync_debug_mode("error")
    try:
        network(ids, slice(0, L), WINDOW, valid=valid, capture=capture)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_training_under_autocast_has_gradients(config):
    network = random(config, device="cuda").requires_grad_(True)
    ids, _ = canvas(padded=False)
    with torch.autocast("cuda", torch.bfloat16):
        logits = network(ids, slice(0, L), slice(0, L)).logits
        with torch.no_grad():
            again = network(ids, slice(0, L), slice(0, L)).logits
    torch.testing.assert_close(logits, again, rtol=0, atol=0.1)
    logits.float().square().mean().backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in network.parameters())
