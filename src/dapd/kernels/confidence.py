"""The most likely token and its probability, read from the logits once: no softmax and no wider copy is ever stored."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dapd.kernels import dependent_launch

CHUNK = 8192
"""Tokens of the vocabulary per program, which holds them in its registers. It does not depend on the number of rows, so
that a row's sum is the same alone and in a batch."""
MAX_IDS = 2
"""Most ids that may be banned, and most that may be deferred, for the kernel to take them."""


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
    import triton
    import triton.language as tl

    from dapd.kernels.jit.confidence import combine, scan

    vocab = logits.shape[-1]
    rows = logits.reshape(-1, vocab)
    chunk = min(CHUNK, triton.next_power_of_2(vocab))
    n_rows = len(rows)
    n_chunks = triton.cdiv(vocab, chunk)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    best = torch.empty(n_rows, n_chunks, dtype=torch.float32, device=rows.device)
    where = torch.empty(n_rows, n_chunks, dtype=torch.int32, device=rows.device)
    total = torch.empty(n_rows, n_chunks, dtype=wide, device=rows.device)
    token = torch.empty(n_rows, dtype=torch.int64, device=rows.device)
    confidence = torch.empty(n_rows, dtype=dtype, device=rows.device)
    out, late = ([*ids, *[-1] * (MAX_IDS - len(ids))] for ids in (banned, deferred))
    kind = tl.float64 if wide == torch.float64 else tl.float32
    launch = dependent_launch(rows)
    warps = max(1, chunk // 1024)
    parts = (best, where, total)
    scan[(n_rows, n_chunks)](rows, *parts, vocab, n_chunks, *out, *late, kind, chunk, num_warps=warps, **launch)
    padded = triton.next_power_of_2(n_chunks)
    combine[(n_rows,)](*parts, token, confidence, vocab, n_chunks, *late, kind, padded, num_warps=1, **launch)
    return token.view(logits.shape[:-1]), confidence.view(logits.shape[:-1])
