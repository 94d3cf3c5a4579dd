"""Attention and its log denominator, from torch's private operators, against the plain formula."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode
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
@pytest.mark.parametrize(("size", "batch"), [(32, 2), (20, 2), (32, 1)])
def test_output_and_log_denominator(dtype, heads, padded, rows, size, batch):
    """Strided heads, as they come out of a packed projection; rows fewer than keys, as with a cache."""
    packed = normal(batch, 45, sum(heads) + heads[1], size, dtype=dtype).transpose(1, 2)
    q, k, v = packed.split((*heads, heads[1]), 1)
    q = 2 * q[:, :, rows]
    padding = torch.tensor([[7], [11]], device=DEVICE)[:batch]
    valid = torch.arange(45, device=DEVICE) >= padding if padded else None
    mask = None if valid is None else attention.KeyMask(valid, dtype)
    out, lse = plain(q, k, v, valid)
    got = attention.attend_with_lse(q, k, v, mask)
    for_out, for_lse = TOLERANCE[dtype]
    torch.testing.assert_close(got.out.double(), out, rtol=0, atol=for_out)
    torch.testing.assert_close(got.lse.double(), lse, rtol=0, atol=for_lse)
    torch.testing.assert_close(attention.attend(q, k, v, mask).double(), out, rtol=0, atol=for_out)
    torch.testing.assert_close(attention.log_denominator(q, k, mask and mask.bias).double(), lse, rtol=0, atol=for_lse)


def test_the_bias_of_a_mask_is_aligned():
    bias = attention.KeyMask(torch.ones(3, 45, dtype=torch.bool, device=DEVICE), torch.float32).bias
    assert bias.shape == (3, 1, 1, 45)
    assert all(stride % 8 == 0 for stride in bias.stride()[:3])


def test_cudnn_is_asked_where_torch_would_choose_it(monkeypatch):
    q = torch.zeros(1, 4, 8, 32, dtype=torch.bfloat16)
    monkeypatch.setattr(attention, "_flash", lambda q: True)
    for choice in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        monkeypatch.setattr(torch, "_fused_sdp_choice", lambda *heads, attn_mask, enable_gqa, c=choice: c.value)
        for bias in (None, torch.zeros(1, 1, 1, 8)):
            assert attention._cudnn(q, q, q, bias) == (choice == SDPBackend.CUDNN_ATTENTION)
    monkeypatch.setattr(attention, "_flash", lambda q: False)
    assert not attention._cudnn(q, q, q, None)


def test_where_the_sequences_of_a_padded_row_end():
    """Its padding has keys and no queries."""
    mask = attention.KeyMask(torch.arange(9)[None] >= 4, torch.float32)
    assert mask.key_ends.tolist() == [0, 4, 9]
    assert mask.query_ends(6).tolist() == [0, 0, 6]
    assert mask.key_ends.dtype == mask.query_ends(6).dtype == torch.int32


def test_flash_attention_needs_a_recent_device_and_half_precision(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5) if device.index == 0 else (8, 0))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # else torch would start both GPUs

    def queries(device=1, dtype=torch.bfloat16, size=64):
        with FakeTensorMode():  # tensors without values, on GPUs that need not be there
            return torch.empty(1, 4, 8, size, dtype=dtype, device=f"cuda:{device}")

    assert attention._flash(queries())
    for unfit in (queries(device=0), queries(dtype=torch.float32), queries(size=12), queries(size=264)):
        assert not attention._flash(unfit)
