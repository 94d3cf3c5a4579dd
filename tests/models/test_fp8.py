"""fp8 layers: how far they are off, where they are refused, and how they are asked for."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import dapd
from dapd.cli.app import app
from dapd.errors import DapdError
from dapd.kernels.fp8 import E4M3_MAX, product, quantise
from dapd.models import TransformerConfig, random
from dapd.models.fp8 import Fp8Linear, is_fp8, quantised, to_fp8
from helpers_models import DREAM, LLADA, PROFILE, full, tokens

GPU = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 9)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_quantised_rows_use_the_whole_range():
    x = normal(5, 64) * torch.tensor([1e-3, 1.0, 1e3, 30.0, 0.0])[:, None]
    value, scale = quantise(x)
    assert (value.dtype, scale.shape) == (torch.float8_e4m3fn, (5, 1))
    assert (value.float().abs().amax(-1)[:4] == E4M3_MAX).all()
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


@pytest.fixture
def pretended(monkeypatch):
    """A CPU that passes for a GPU with fp8: the torch versions of the kernels do the work."""
    monkeypatch.setattr("dapd.models.fp8.has_fp8", lambda device: True)


@pytest.mark.parametrize("source", ["random:tiny-llada", "random:tiny-dream", "lab"])
def test_load_with_fp8(pretended, source):
    lm = dapd.load(source, device="cpu", fp8=True)
    assert (is_fp8(lm.network), lm.network.dtype, lm.name) == (True, torch.bfloat16, f"{source} (fp8)")
    assert lm.generate([1, 5, 6], max_new_tokens=4).nfe > 0
    assert not is_fp8(dapd.load(source, device="cpu").network)


def test_load_refuses_what_cannot_be_fp8(pretended, tmp_path):
    with pytest.raises(DapdError, match=r"bfloat16 network, not one in torch\.float32"):
        dapd.load("random:tiny-llada", device="cpu", dtype=torch.float32, fp8=True)
    (tmp_path / "config.json").write_text('{"architectures": ["BertForMaskedLM"]}')
    with pytest.raises(DapdError, match="fp8 is for LLaDA and Dream models"):
        dapd.load(tmp_path, device="cpu", fp8=True)


@pytest.mark.parametrize(
    "command",
    [
        ["generate", "x", "-m", "random:llada-8b"],
        ["eval", "-m", "random:llada-8b"],
        ["bench", "forward", "-m", "random:llada-8b"],
        ["bench", "step", "-m", "random:llada-8b"],
        ["bench", "decode", "-m", "random:llada-8b"],
        ["bench", "parity", "-m", "random:llada-8b"],
    ],
)
def test_commands_say_what_fp8_needs_before_they_load_anything(command):
    with pytest.raises(DapdError, match=r"compute capability 8\.9 or later .*; the device is cpu"):
        CliRunner().invoke(app, [*command, "--device", "cpu", "--fp8"], catch_exceptions=False)


def test_bench_in_fp8(pretended):
    few = ["-m", "random:tiny-llada", "--device", "cpu", "--fp8"]
    small = ["--prompt", "4", "--gen", "8", "--repeats", "1", "--warmup", "1"]
    for command in (["forward"], ["step", "--strategies", "original"], ["decode", "--steps", "2"]):
        done = CliRunner().invoke(app, ["bench", *command, *few, *small], catch_exceptions=False)
        rows = json.loads(done.stdout.splitlines()[-1])["rows"]
        assert {row["dtype"] for row in rows} == {"fp8"}, command
    with pytest.raises(DapdError, match="the naive path has no fp8; leave naive-pairs out"):
        CliRunner().invoke(app, ["bench", "step", *few, "--strategies", "naive-pairs"], catch_exceptions=False)
    with pytest.raises(DapdError, match="leave eager out"):
        CliRunner().invoke(app, ["bench", "forward", *few, "--capture", "eager"], catch_exceptions=False)


def test_parity_counts_the_commits_that_fp8_changes(pretended):
    words = ["bench", "parity", "-m", "random:tiny-llada", "--device", "cpu", "--prompts", "2", "--task", "shuffle"]
    done = CliRunner().invoke(
        app, [*words, "--dtypes", "bfloat16", "--fp8", "--strategies", "original"], catch_exceptions=False
    )
    first, second = json.loads(done.stdout.splitlines()[-1])["rows"]
    assert (first["dtype"], second["dtype"]) == ("bfloat16", "fp8")
    assert first["versus_first_dtype"] is first["forced_versus_first_dtype"] is None
    assert 0 < second["forced_versus_first_dtype"] <= 1
    assert 0 < second["versus_first_dtype"] <= 1
