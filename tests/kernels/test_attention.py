"""Attention and its log denominator, from torch's private operators, against the plain formula."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend

from dapd.kernels import attention
from kernels.twins import DEVICE, normal

DTYPES = [torch.float32, torch.float64, torch.bfloat16]
TOLERANCE = {torch.float32: (1e-5, 1e-5), torch.float64: (1e-12, 1e-12), torch.bfloat16: (2e-2, 2e-3)}
"""Of the output and of the logarithm."""


def plain(q, k, v, valid):
    """softmax(q k^T / sqrt(d)) v and its log denominator, in float64."""
    q, (k, v) = q.double(), (x.double().repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if valid is not None:
        scores = scores.masked_fill(~valid[:, None, None, :], -torch.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (4, 1)], ids=str)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("rows", [slice(0, 45), slice(7, 8), slice(12, 40)], ids=["all", "one", "some"])
@pytest.mark.parametrize("size", [32, 20])
def test_output_and_log_denominator(dtype, heads, padded, rows, size):
    """Strided heads, as they come out of a packed projection; rows fewer than keys, as with a cache."""
    packed = normal(2, 45, sum(heads) + heads[1], size, dtype=dtype).transpose(1, 2)
    q, k, v = packed.split((*heads, heads[1]), 1)
    q = 2 * q[:, :, rows]
    valid = torch.arange(45, device=DEVICE) >= torch.tensor([[0], [11]], device=DEVICE) if padded else None
    bias = None if valid is None else attention.key_bias(valid, dtype)
    out, lse = plain(q, k, v, valid)
    got = attention.attend_with_lse(q, k, v, bias)
    for_out, for_lse = TOLERANCE[dtype]
    torch.testing.assert_close(got.out.double(), out, rtol=0, atol=for_out)
    torch.testing.assert_close(got.lse.double(), lse, rtol=0, atol=for_lse)
    torch.testing.assert_close(attention.attend(q, k, v, bias).double(), out, rtol=0, atol=for_out)
    torch.testing.assert_close(attention.log_denominator(q, k, bias).double(), lse, rtol=0, atol=for_lse)


def test_key_bias_is_aligned():
    bias = attention.key_bias(torch.ones(3, 45, dtype=torch.bool, device=DEVICE), torch.float32)
    assert bias.shape == (3, 1, 1, 45)
    assert all(stride % 8 == 0 for stride in bias.stride()[:3])


def test_cudnn_is_asked_where_torch_would_choose_it(monkeypatch):
    q = torch.zeros(1, 4, 8, 32, dtype=torch.bfloat16)
    monkeypatch.setattr(attention, "_flash", lambda q, bias: bias is None)
    for choice in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        monkeypatch.setattr(torch, "_fused_sdp_choice", lambda *heads, enable_gqa, c=choice: c.value)
        assert attention._cudnn(q, q, q, None) == (choice == SDPBackend.CUDNN_ATTENTION)
    assert not attention._cudnn(q, q, q, torch.zeros(1, 1, 1, 8))


def test_flash_attention_needs_a_recent_device(monkeypatch):
    attention._has_flash.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5) if device.index == 0 else (8, 0))
    assert not attention._has_flash(torch.device("cuda", 0))
    assert attention._has_flash(torch.device("cuda", 1))
    attention._has_flash.cache_clear()
