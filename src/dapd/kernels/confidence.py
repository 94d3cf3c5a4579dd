"""The most likely token and its probability, read from the logits once: no softmax and no wider copy is ever stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

CHUNK = 16384
"""Tokens of the vocabulary per program: 256 rows of 126,464 make 2,048 programs. It does not depend on the number of
rows, so that a row's sum is the same alone and in a batch."""
TILE = 2048
MAX_IDS = 2
"""Ids of each kind that may be forbidden."""


def takes(logits: Float[Tensor, "*b v"], banned: Sequence[int], deferred: Sequence[int]) -> bool:
    """Whether the kernel is made for these: float64 logits and long lists of ids are left to torch."""
    narrow = logits.dtype in (torch.float32, torch.bfloat16, torch.float16)
    return narrow and logits.numel() > 0 and len(banned) <= MAX_IDS and len(deferred) <= MAX_IDS


def most_likely(
    logits: Float[Tensor, "*b v"], banned: Sequence[int], deferred: Sequence[int], dtype: torch.dtype
) -> tuple[Int[Tensor, "*b"], Float[Tensor, "*b"]]:
    """Token and confidence as `sampling.choose` defines them at temperature 0.

    token = the argmax over what is not banned, the lowest id among equals (as torch's argmax); confidence =
    1 / sum_v exp(l_v - l_token) over what is neither banned nor deferred, which is what a softmax computes, summed in
    float64 if that is asked for and else in float32; 0 where the token is deferred.
    """
    vocab = logits.shape[-1]
    rows = logits.reshape(-1, vocab)
    n_rows, n_chunks = len(rows), triton.cdiv(vocab, CHUNK)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    best = torch.empty(n_rows, n_chunks, dtype=torch.float32, device=rows.device)
    where = torch.empty(n_rows, n_chunks, dtype=torch.int32, device=rows.device)
    total = torch.empty(n_rows, n_chunks, dtype=wide, device=rows.device)
    token = torch.empty(n_rows, dtype=torch.int64, device=rows.device)
    confidence = torch.empty(n_rows, dtype=dtype, device=rows.device)
    out, late = ([*ids, *[-1] * (MAX_IDS - len(ids))] for ids in (banned, deferred))
    kind = tl.float64 if wide == torch.float64 else tl.float32
    tile = min(TILE, triton.next_power_of_2(vocab))
    _scan[(n_rows, n_chunks)](rows, best, where, total, vocab, n_chunks, *out, *late, kind, CHUNK, tile)
    padded = triton.next_power_of_2(n_chunks)
    _combine[(n_rows,)](best, where, total, token, confidence, vocab, n_chunks, *late, kind, padded, num_warps=1)
    return token.view(logits.shape[:-1]), confidence.view(logits.shape[:-1])


@triton.jit  # type: ignore[untyped-decorator]
def _is_one_of(ids: Any, a: Any, b: Any) -> Any:
    return (ids == a) | (ids == b)


@triton.jit  # type: ignore[untyped-decorator]
def _scan(
    logits: Any,
    best: Any,
    where: Any,
    total: Any,
    vocab: Any,
    n_chunks: Any,
    out_a: Any,
    out_b: Any,
    late_a: Any,
    late_b: Any,
    KIND: tl.constexpr,
    CHUNK: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Per row and chunk: the largest logit, the first id that has it, and sum exp(l - largest)."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    # The lowest finite value: with -inf, exp(l - largest) of a chunk that is all forbidden would be nan.
    lowest = -3.4028234663852886e38
    top = tl.full([], lowest, tl.float32)
    at = chunk * CHUNK
    acc = tl.zeros([TILE], dtype=KIND)
    for first in range(chunk * CHUNK, tl.minimum(chunk * CHUNK + CHUNK, vocab), TILE):
        ids = first + tl.arange(0, TILE)
        inside = ids < vocab
        value = tl.load(logits + row * vocab + ids, mask=inside, other=0.0).to(tl.float32)
        forbidden = ~inside | _is_one_of(ids, out_a, out_b)
        # A comparison with nan is false: nan stays, and makes the sum nan.
        value = tl.where(forbidden | (value < lowest), lowest, value)
        here = tl.max(value, 0)
        at = tl.where(here > top, tl.min(tl.where(value == here, ids, vocab), 0), at)
        new = tl.maximum(here, top)
        counted = tl.exp(value.to(KIND) - new.to(KIND))
        counted = tl.where(forbidden | _is_one_of(ids, late_a, late_b), 0.0, counted)
        acc = acc * tl.exp(top.to(KIND) - new.to(KIND)) + counted
        top = new
    tl.store(best + row * n_chunks + chunk, top)
    tl.store(where + row * n_chunks + chunk, at)
    tl.store(total + row * n_chunks + chunk, tl.sum(acc, 0))


@triton.jit  # type: ignore[untyped-decorator]
def _combine(
    best: Any,
    where: Any,
    total: Any,
    token: Any,
    confidence: Any,
    vocab: Any,
    n_chunks: Any,
    late_a: Any,
    late_b: Any,
    KIND: tl.constexpr,
    PADDED: tl.constexpr,
) -> None:
    """The chunks of one row put together."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.arange(0, PADDED)
    inside = chunk < n_chunks
    top = tl.load(best + row * n_chunks + chunk, mask=inside, other=-3.4028234663852886e38)
    at = tl.load(where + row * n_chunks + chunk, mask=inside, other=0)
    part = tl.load(total + row * n_chunks + chunk, mask=inside, other=0.0)
    largest = tl.max(top, 0)
    chosen = tl.min(tl.where(inside & (top == largest), at, vocab), 0)
    chosen = tl.minimum(chosen, vocab - 1)
    whole = tl.sum(part * tl.exp(top.to(KIND) - largest.to(KIND)), 0)
    late = _is_one_of(chosen, late_a, late_b)
    tl.store(token + row, chosen.to(tl.int64))
    tl.store(confidence + row, tl.where(late, 0.0, 1.0 / whole))
