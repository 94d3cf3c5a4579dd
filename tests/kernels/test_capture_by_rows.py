"""Capture on a CPU, a few rows at a time, against whole heads at once."""

from __future__ import annotations

import pytest
import torch

from dapd.kernels import attention, capture
from dapd.kernels.capture import AttentionSum, add_by_rows, head_sum
from kernels.twins import normal

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-6, torch.bfloat16: 1e-5}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (4, 1)], ids=str)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("cached", [1, 100, 1 << 18], ids=["a row", "some rows", "all"])
@pytest.mark.parametrize(("rows", "size"), [(slice(0, 45), 16), (slice(7, 40), 20)], ids=["square", "part"])
def test_rows_add_up_to_whole_heads(dtype, heads, padded, cached, rows, size, monkeypatch):
    """Two layers, strided queries and keys, heads that are shared, a size whose root is no power of two."""
    monkeypatch.setattr(capture, "CACHED", cached)
    valid = torch.arange(45) >= torch.tensor([[0], [11]]) if padded else None
    bias = None if valid is None else attention.KeyMask(valid, dtype).bias
    sums = None
    want = torch.zeros(2, rows.stop - rows.start, 45)
    for layer in range(2):
        packed = 1.5 * normal(2, 45, sum(heads) + heads[1], size, dtype=dtype, seed=layer).cpu()
        q, k, _ = packed.transpose(1, 2).split((*heads, heads[1]), 1)
        some = (q[:, :, rows], k, attention.log_denominator(q, k, bias)[:, :, rows], valid)
        before = [part.clone() for part in some if part is not None]
        sums = add_by_rows(sums, *some)
        want += head_sum(*some)
        assert all(torch.equal(a, b) for a, b in zip(before, (p for p in some if p is not None), strict=True))
    assert sums is not None
    assert sums.dtype == torch.float32
    torch.testing.assert_close(sums[0], want, rtol=TOLERANCE[dtype], atol=1e-6)


def test_large_canvases_go_by_rows(monkeypatch):
    q, k = normal(1, 2, 300, 16).cpu(), normal(1, 2, 300, 16, seed=1).cpu()
    lse = attention.log_denominator(q, k, None)
    monkeypatch.setattr(capture, "head_sum", lambda *_: pytest.fail("a whole head was in memory"))
    total = AttentionSum()
    total.add(q, k, lse, None)
    mean = total.mean()
    torch.testing.assert_close(mean.sum(-1), torch.ones(1, 300), rtol=0, atol=1e-4)
    assert torch.equal(total.mean(), mean)
