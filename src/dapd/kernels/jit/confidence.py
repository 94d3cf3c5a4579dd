"""The largest logit, its id and the sum of exponentials: of each chunk of a row, then of the whole row."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _is_one_of(ids, a, b):
    return (ids == a) | (ids == b)


@triton.jit
def scan(
    logits,
    best,
    where,
    total,
    vocab,
    n_chunks,
    out_a,
    out_b,
    late_a,
    late_b,
    KIND: tl.constexpr,
    CHUNK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Per row and chunk: the largest logit, the first id that has it, and sum exp(l - largest)."""
    if PDL:
        tl.extra.cuda.gdc_wait()
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    # The lowest finite value: with -inf, exp(l - largest) of a chunk that is all forbidden would be nan.
    lowest = -3.4028234663852886e38
    ids = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = ids < vocab
    value = tl.load(logits + row * vocab + ids, mask=inside, other=0.0).to(tl.float32)
    forbidden = ~inside | _is_one_of(ids, out_a, out_b)
    # A comparison with nan is false: nan stays, and makes the sum nan.
    value = tl.where(forbidden | (value < lowest), lowest, value)
    top = tl.maximum(tl.max(value, 0), lowest)
    at = tl.min(tl.where(value == top, ids, vocab), 0)
    counted = tl.exp(value.to(KIND) - top.to(KIND))
    counted = tl.where(forbidden | _is_one_of(ids, late_a, late_b), 0.0, counted)
    tl.store(best + row * n_chunks + chunk, top)
    tl.store(where + row * n_chunks + chunk, at)
    tl.store(total + row * n_chunks + chunk, tl.sum(counted, 0))


@triton.jit
def combine(
    best,
    where,
    total,
    token,
    confidence,
    vocab,
    n_chunks,
    late_a,
    late_b,
    KIND: tl.constexpr,
    PADDED: tl.constexpr,
    PDL: tl.constexpr,
):
    """Token and confidence of one row, from its chunks."""
    if PDL:
        tl.extra.cuda.gdc_wait()
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
    # A sum that is nan stays nan, so that the host finds out that the logits were no numbers.
    late = _is_one_of(chosen, late_a, late_b) & (whole == whole)
    tl.store(token + row, chosen.to(tl.int64))
    tl.store(confidence + row, tl.where(late, 0.0, 1.0 / whole))
