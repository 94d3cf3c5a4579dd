"""Dream's own sampler (spec 2.5): a schedule in t, no blocks."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from reference.common import Decoded, forbid, masked_in, ranked
from reference.network import Sequence, columns, predictions


def schedule(n_new: int, steps: int, eps: float = 1e-3) -> list[int]:
    """How many of the remaining masks each step commits, in the fp32 of upstream's tensors."""
    times = torch.linspace(1, eps, steps + 1)
    left, counts = n_new, []
    for i in range(steps):
        part = 1 - times[i + 1] / times[i]
        counts.append(int(torch.tensor(float(left)) * part) if i < steps - 1 else left)
        left -= counts[-1]
    return counts


def filtered(row: Tensor, temperature: float, top_p: float | None, top_k: int | None) -> Tensor:
    """Temperature, then nucleus, then top-k; the dropped ones get the lowest finite number."""
    lowest = torch.finfo(row.dtype).min
    if temperature > 0:
        row = row / temperature
    if top_p is not None and top_p < 1:
        row, total = row.clone(), 0.0
        p = torch.softmax(row, 0)
        for index in sorted(range(len(row)), key=lambda v: -float(p[v])):
            if total > top_p:  # the mass before this one is already enough
                row[index] = lowest
            total += float(p[index])
    if top_k is not None:
        row = row.clone()
        row[row < row.topk(top_k).values[-1]] = lowest
    return row


def negative_entropy(row: Tensor, mask_id: int) -> tuple[int, float]:
    p = torch.softmax(forbid(row, mask_id), 0)
    return int(p.argmax()), float((p * torch.log(p + 1e-10)).sum())


def decode_cached(
    sequence: Sequence,
    prompt: list[int],
    n_new: int,
    *,
    steps: int,
    block_length: int,
    reuse: Literal["prefix", "dual"],
    eps: float = 1e-3,
) -> Decoded:
    """Fast-dLLM's cached sampler for Dream without a threshold (spec 3.5 b): negative entropy and the quota in t.

    The pass at the start of a block commits its first token alone and counts as the first of the block's steps.
    """
    mask_id = sequence.config.profile.mask_id
    out = Decoded([*prompt, *[mask_id] * n_new])
    per_block = steps * block_length // n_new
    times = torch.linspace(1, eps, per_block + 1)
    for first in range(len(prompt), len(out.tokens), block_length):
        stop = first + block_length
        out.commit({first: int(forbid(predictions(sequence, out.tokens)[first], mask_id).argmax())})
        for i in range(1, per_block):
            left = masked_in(out.tokens, mask_id, first, stop)
            rows = predictions(sequence, out.tokens, columns(reuse, first, stop, len(out.tokens), fresh=False))
            pairs = {j: negative_entropy(rows[j], mask_id) for j in left}
            part = 1 - times[i + 1] / times[i]
            k = int(torch.tensor(float(len(left))) * part) if i < per_block - 1 else len(left)
            order = ranked(left, {j: score for j, (_, score) in pairs.items()})
            out.commit({j: pairs[j][0] for j in order[:k]})
    return out


def decode(
    sequence: Sequence,
    prompt: list[int],
    n_new: int,
    *,
    steps: int,
    alg: Literal["entropy", "maskgit_plus", "topk_margin"] = "entropy",
    top_p: float | None = None,
    top_k: int | None = None,
) -> Decoded:
    mask_id = sequence.config.profile.mask_id
    out = Decoded([*prompt, *[mask_id] * n_new])
    for k in schedule(n_new, steps):
        logits = predictions(sequence, out.tokens)
        token, score = {}, {}
        for i in masked_in(out.tokens, mask_id, 0, len(out.tokens)):
            p = torch.softmax(filtered(forbid(logits[i], mask_id), 0.0, top_p, top_k), 0)
            token[i] = int(p.argmax())
            if alg == "maskgit_plus":
                score[i] = float(p[token[i]])
            elif alg == "topk_margin":
                top = p.topk(2).values
                score[i] = float(top[0] - top[1])
            else:
                score[i] = float((p * torch.log(p + 1e-10)).sum())
        out.commit({i: token[i] for i in ranked(list(token), score)[:k]})
    return out
