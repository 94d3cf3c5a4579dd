"""fp8 layers: how far they are off, and where they are refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dapd.errors import DapdError
from dapd.kernels.fp8 import LARGEST, product, quantise
from dapd.models import TransformerConfig, random
from dapd.models.fp8 import Fp8Linear, quantised, to_fp8
from helpers_models import DREAM, LLADA, PROFILE, full, tokens

GPU = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 9)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_quantised_rows_use_the_whole_range():
    x = normal(5, 64) * torch.tensor([1e-3, 1.0, 1e3, 30.0, 0.0])[:, None]
    value, scale = quantise(x)
    assert (value.dtype, scale.shape) == (torch.float8_e4m3fn, (5, 1))
    assert (value.float().abs().amax(-1)[:4] == LARGEST).all()
    assert (value[4].float() == 0).all()
    # Three bits of mantissa: at most one part in sixteen of a number; small ones against the row's largest.
    error = (value.float() * scale - x).abs()
    assert (error <= x.abs() / 16 + x.abs().amax(-1, keepdim=True) * 2e-5).all()


def test_a_layer_is_near_the_exact_one():
    linear = nn.Linear(256, 96).requires_grad_(False)
    x = normal(2, 7, 256)
    got, want = Fp8Linear(linear)(x), linear(x)
    assert got.shape == want.shape
    assert (got - want).norm() / want.norm() < 0.05


def test_rows_do_not_depend_on_each_other():
    """A scale for each token: the same row alone and in a batch."""
    linear = Fp8Linear(nn.Linear(64, 32).requires_grad_(False))
    x = normal(3, 64) * torch.tensor([1.0, 100.0, 0.01])[:, None]
    torch.testing.assert_close(linear(x)[2:], linear(x[2:]))


@pytest.mark.parametrize("config", [LLADA, DREAM], ids=["llada", "dream"])
def test_a_whole_network(config):
    exact, ids = random(config), tokens(2, 9)
    want = full(exact, ids).logits
    got = full(quantised(random(config)), ids).logits
    assert 0 < (got - want).norm() / want.norm() < 0.25


@pytest.mark.skipif(GPU, reason="there is a GPU")
def test_no_gpu_no_fp8():
    with pytest.raises(DapdError, match=r"compute capability 8\.9"):
        to_fp8(random(LLADA))


@pytest.mark.skipif(not GPU, reason="needs a GPU with fp8")
def test_products_on_the_gpu():
    x, weight = normal(37, 256).cuda().bfloat16(), normal(96, 256, seed=1).cuda().bfloat16()
    ours, theirs = quantise(x), quantise(x.cpu())
    torch.testing.assert_close(ours.scale.cpu(), theirs.scale, rtol=1e-6, atol=0)
    torch.testing.assert_close(ours.value.cpu().float(), theirs.value.float(), rtol=0.13, atol=0.01)
    got, want = product(ours, quantise(weight), torch.bfloat16), x.float() @ weight.float().T
    assert (got - want).norm() / want.norm() < 0.05


@pytest.mark.skipif(not GPU, reason="needs a GPU with fp8")
@pytest.mark.parametrize("bias", [False, True])
def test_a_whole_network_on_the_gpu(bias):
    config = TransformerConfig(
        n_layers=3, d_model=256, n_heads=4, n_kv_heads=2, d_mlp=512, vocab_size=61, profile=PROFILE, qkv_bias=bias
    )
    ids = tokens(2, 33).cuda()
    want = full(random(config, device="cuda", dtype=torch.bfloat16), ids).logits
    got = full(to_fp8(random(config, device="cuda", dtype=torch.bfloat16)), ids).logits
    assert (got - want).float().norm() / want.float().norm() < 0.25
    with pytest.raises(DapdError, match="bfloat16"):
        to_fp8(random(config, device="cuda"))
