"""KLASS (spec 5): commit what is confident and whose prediction has stopped moving; otherwise fall back."""

from __future__ import annotations

import torch

from reference.common import Decoded, best, forbid, masked_in, quota, ranked
from reference.network import Sequence, predictions


class History:
    """KL(current || previous) of every position of the sequence, the last `n` of them. It lives across blocks."""

    def __init__(self, length: int, vocab: int, n: int) -> None:
        self.previous = torch.zeros(length, vocab, dtype=torch.float64)
        self.kl = [[0.0] * n for _ in range(length)]

    def push(self, p: torch.Tensor) -> None:
        for i in range(len(self.kl)):
            terms = p[i] * (torch.log(p[i] + 1e-12) - torch.log(self.previous[i] + 1e-12))
            self.kl[i] = [*self.kl[i][1:], float(terms.sum())]
        self.previous = p

    def stable(self, i: int, limit: float) -> bool:
        return all(value < limit for value in self.kl[i])


def decode_llada(
    sequence: Sequence,
    prompt: list[int],
    n_new: int,
    *,
    conf_threshold: float,
    kl_threshold: float,
    history: int = 2,
    steps: int,
    block_length: int,
) -> Decoded:
    """A block whose steps are spent before it is full goes on at the rate of the last one (upstream leaves masks)."""
    mask_id, vocab = sequence.config.profile.mask_id, sequence.config.vocab_size
    out = Decoded([*prompt, *[mask_id] * n_new])
    past = History(len(out.tokens), vocab, history)
    per_block = steps // (n_new // block_length)
    for first in range(len(prompt), len(out.tokens), block_length):
        stop = first + block_length
        fallback = quota(len(masked_in(out.tokens, mask_id, first, stop)), per_block)
        step = 0
        while left := masked_in(out.tokens, mask_id, first, stop):
            rows = {i: forbid(row.double(), mask_id) for i, row in predictions(sequence, out.tokens).items()}
            past.push(torch.stack([torch.softmax(row, 0) for row in rows.values()]))
            token, confidence = {}, {}
            for i in left:
                token[i], confidence[i] = best(rows[i])
            ready = [i for i in left if confidence[i] > conf_threshold and past.stable(i, kl_threshold)]
            if step < history - 1 or not ready:
                ready = ranked(left, confidence)[: max(1, fallback[min(step, per_block - 1)])]
            out.commit({i: token[i] for i in ready})
            step += 1
    return out


def decode_dream(
    sequence: Sequence,
    prompt: list[int],
    n_new: int,
    *,
    conf_threshold: float,
    kl_threshold: float,
    history: int = 2,
) -> Decoded:
    """No blocks, no guard on the step, `>=`, and one token where nothing is ready."""
    mask_id, vocab = sequence.config.profile.mask_id, sequence.config.vocab_size
    out = Decoded([*prompt, *[mask_id] * n_new])
    past = History(len(out.tokens), vocab, history)
    while left := masked_in(out.tokens, mask_id, 0, len(out.tokens)):
        rows = {i: forbid(row.double(), mask_id) for i, row in predictions(sequence, out.tokens).items()}
        past.push(torch.stack([torch.softmax(row, 0) for row in rows.values()]))
        token, confidence = {}, {}
        for i in left:
            token[i], confidence[i] = best(rows[i])
        ready = [i for i in left if confidence[i] >= conf_threshold and past.stable(i, kl_threshold)]
        out.commit({i: token[i] for i in ready or ranked(left, confidence)[:1]})
    return out
