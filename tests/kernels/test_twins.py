"""Every kernel of the forward pass against the torch version beside it."""

from __future__ import annotations

import pytest
import torch

from dapd import kernels
from dapd.kernels import attention
from dapd.kernels.capture import AttentionSum
from dapd.kernels.fp8 import quantise
from dapd.kernels.norm import add_rms_norm
from dapd.kernels.rotary import rotated_heads
from dapd.kernels.swiglu import swiglu
from kernels.twins import DEVICE, DTYPES, PRODUCTS, TOLERANCE, needs_kernels, normal

pytestmark = needs_kernels


def close(got, want, dtype):
    torch.testing.assert_close(got, want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [64, 100, 384])
def test_norm_of_a_sum(dtype, size):
    x, y = 3 * normal(2, 3, size, dtype=dtype), normal(2, 3, size, dtype=dtype, seed=2)
    before, weight = x.clone(), 1 + 0.3 * normal(size, dtype=dtype, seed=1)
    got = add_rms_norm(x, y, weight, 1e-6)
    assert torch.equal(x, before)
    with kernels.disabled():
        want = add_rms_norm(x, y, weight, 1e-6)
    if DEVICE == "cuda" or dtype == torch.float32:
        assert torch.equal(got.total, want.total)
    close(got.total, want.total, dtype)
    close(got.normed, want.normed, dtype)


def test_norm_of_rows_that_are_a_view():
    x, weight = normal(2, 9, 32)[:, 3:7], torch.ones(32, device=DEVICE)
    got = add_rms_norm(x, x, weight, 1e-5)
    with kernels.disabled():
        close(got.normed, add_rms_norm(x, x, weight, 1e-5).normed, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [48, 1024, 1100])
def test_swiglu(dtype, size):
    packed = 2 * normal(2, 3, 2 * size, dtype=dtype)
    got = swiglu(packed)
    with kernels.disabled():
        close(got, swiglu(packed), dtype)


def tables(batch, length, size, dtype):
    place = torch.arange(length) + 3 * torch.arange(batch)[:, None]
    angle = place[:, None, :, None] * (0.01 ** (torch.arange(size // 2) / size)).repeat(2)
    return angle.cos().to(DEVICE, dtype), angle.sin().to(DEVICE, dtype)


@pytest.mark.parametrize(
    ("dtype", "table"), [(torch.float32,) * 2, (torch.bfloat16, torch.float32), (torch.bfloat16,) * 2]
)
@pytest.mark.parametrize("counts", [(4, 4), (6, 2), (28, 4)], ids=str)
@pytest.mark.parametrize("rows", [1, 2], ids=["one table", "a table each"])
def test_rotary(dtype, table, counts, rows):
    packed = normal(2, 5, (counts[0] + 2 * counts[1]) * 32, dtype=dtype)
    cos, sin = tables(rows, 5, 32, table)
    with kernels.disabled():
        want = rotated_heads(packed.clone(), counts, cos, sin)
    got = rotated_heads(packed.clone(), counts, cos, sin)
    for ours, theirs in zip(got, want, strict=True):
        close(ours, theirs, dtype)
        assert ours.stride(-1) == 1


def test_rotary_of_heads_no_kernel_takes():
    packed = normal(1, 5, 12 * 24)
    before = packed.clone()
    got = rotated_heads(packed, (4, 4), *tables(1, 5, 24, torch.float32))
    assert torch.equal(packed, before)
    assert got.q.shape == (1, 4, 5, 24)


@pytest.mark.parametrize("dtype", PRODUCTS)
@pytest.mark.parametrize(("heads", "padded"), [((4, 4), False), ((6, 2), True)], ids=["plain", "shared and padded"])
@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        (slice(6, 46), slice(6, 46)),
        (slice(5, 45), slice(6, 46)),
        (slice(12, 50), slice(0, 50)),
        (slice(3, 4), slice(40, 50)),
    ],
    ids=["window", "shifted", "canvas", "one row"],
)
def test_capture(dtype, heads, padded, rows, columns):
    """Two layers; strided queries and keys; sizes that no tile divides."""
    valid = None
    if padded:
        valid = torch.arange(50, device=DEVICE) >= torch.tensor([[0], [20]], device=DEVICE)
    bias = None if valid is None else attention.KeyMask(valid, dtype).bias
    ours, theirs = AttentionSum(), AttentionSum()
    for layer in range(2):
        packed = 1.5 * normal(2, 50, sum(heads) + heads[1], 32, dtype=dtype, seed=layer)
        q, k, _ = packed.transpose(1, 2).split((*heads, heads[1]), 1)
        lse = attention.log_denominator(q, k, bias)
        some = (q[:, :, rows], k[:, :, columns], lse[:, :, rows], None if valid is None else valid[:, columns])
        ours.add(*some)
        with kernels.disabled():
            theirs.add(*some)
    got, want = ours.mean(), theirs.mean()
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6 if dtype == torch.float32 else 1e-5)
    if padded:
        assert (got[1, :, : max(0, 20 - columns.start)] == 0).all()
    if columns == slice(0, 50):
        torch.testing.assert_close(got.sum(-1), torch.ones_like(got[..., 0]), rtol=0, atol=1e-3)


def test_capture_splits_the_heads_until_there_are_programs_enough():
    from dapd.kernels.jit.capture import parts_of

    assert [parts_of(32, n) for n in (1, 16, 64, 128, 1000)] == [32, 8, 2, 1, 1]
    assert [parts_of(28, n) for n in (16, 40)] == [14, 4]


def test_sums_are_the_same_in_every_run():
    q, k = normal(1, 4, 40, 16), normal(1, 4, 40, 16, seed=1)
    lse = attention.log_denominator(q, k, None)
    found = []
    for _ in range(2):
        total = AttentionSum()
        total.add(q, k, lse, None)
        found.append(total.mean())
    assert torch.equal(*found)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [64, 100])
def test_fp8(dtype, size):
    x = 3 * normal(4, size, dtype=dtype)
    x[2] = 0
    got = quantise(x)
    with kernels.disabled():
        want = quantise(x)
    torch.testing.assert_close(got.scale, want.scale, rtol=1e-6, atol=0)
    if DEVICE == "cuda":  # the interpreter loses the carry of a mantissa that is rounded up
        # A quotient on the edge between two numbers may fall to either side.
        torch.testing.assert_close(got.value.float(), want.value.float(), rtol=0.13, atol=0.01)
    assert (got.value.float() == want.value.float()).float().mean() > 0.95
