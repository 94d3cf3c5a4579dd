"""Fast-dLLM (spec 3): threshold and factor rules, with and without caches, for LLaDA and for Dream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from reference.common import Decoded, best, forbid, masked_in, ranked
from reference.network import Sequence, columns, predictions

Rule = Callable[[list[float]], int]
"""From the confidences, highest first, to how many of them are committed."""


def threshold(limit: float) -> Rule:
    """All that reach the limit, and always the first."""
    return lambda ranks: max(1, sum(1 for c in ranks if c >= limit))


def factor(f: float) -> Rule:
    """Walk until a rank fails. A failure at the very last rank is not seen, and a single mask is always taken."""

    def count(ranks: list[float]) -> int:
        failed = len(ranks)
        for n, c in enumerate(ranks, start=1):
            limit = -1.0 if n == 1 else 1 - f / (n + 1)
            if c < limit:
                failed = n
                break
        return len(ranks) if failed >= len(ranks) else failed - 1

    return count


def choose(rows: dict[int, Tensor], mask_id: int, rule: Rule) -> dict[int, int]:
    """Commit by the rule among the given positions; confidence is a softmax in float64."""
    pairs = {i: best(forbid(row.double(), mask_id)) for i, row in rows.items()}
    order = ranked(list(rows), {i: c for i, (_, c) in pairs.items()})
    return {i: pairs[i][0] for i in order[: rule([pairs[i][1] for i in order])]}


def decode_llada(
    sequence: Sequence,
    prompt: list[int],
    n_new: int,
    rule: Rule,
    *,
    block_length: int,
    reuse: Literal["none", "prefix", "dual"] = "none",
    refresh: int | None = None,
) -> Decoded:
    """The January 2026 code: a cached pass is made only while the block still has masks.

    Ours alone: with `refresh` every so many passes of a block feed all columns again.
    """
    mask_id = sequence.config.profile.mask_id
    out = Decoded([*prompt, *[mask_id] * n_new])
    for first in range(len(prompt), len(out.tokens), block_length):
        stop, passes = first + block_length, 0
        while left := masked_in(out.tokens, mask_id, first, stop):
            fresh = passes % (refresh or n_new) == 0
            rows = predictions(sequence, out.tokens, columns(reuse, first, stop, len(out.tokens), fresh=fresh))
            out.commit(choose({i: rows[i] for i in left}, mask_id, rule))
            passes += 1
    return out


def decode_dream(
    sequence: Sequence,
    prompt: list[int],
    n_new: int,
    rule: Rule,
    *,
    block_length: int,
    reuse: Literal["prefix", "dual"],
) -> Decoded:
    """The pass at the block's start commits its first token and no other; then the rule, the shift the block's own."""
    mask_id = sequence.config.profile.mask_id
    out = Decoded([*prompt, *[mask_id] * n_new])
    for first in range(len(prompt), len(out.tokens), block_length):
        stop = first + block_length
        token, _ = best(forbid(predictions(sequence, out.tokens)[first], mask_id))
        out.commit({first: token})
        while left := masked_in(out.tokens, mask_id, first, stop):
            rows = predictions(sequence, out.tokens, columns(reuse, first, stop, len(out.tokens), fresh=False))
            out.commit(choose({i: rows[i] for i in left}, mask_id, rule))
    return out


def decode_dream_budget(sequence: Sequence, prompt: list[int], n_new: int, limit: float, *, steps: int) -> Decoded:
    """Dream without a cache: a step looks at n_new / steps positions and at those that failed before, no others."""
    mask_id = sequence.config.profile.mask_id
    out = Decoded([*prompt, *[mask_id] * n_new])
    assert n_new % steps == 0
    left_over = 0
    while left := masked_in(out.tokens, mask_id, 0, len(out.tokens)):
        budget = (n_new // steps if out.nfe < steps else 0) + left_over
        logits = predictions(sequence, out.tokens)
        pairs = {i: best(forbid(logits[i].double(), mask_id)) for i in left}
        looked_at = ranked(left, {i: c for i, (_, c) in pairs.items()})[:budget]
        taken = [i for rank, i in enumerate(looked_at) if rank == 0 or pairs[i][1] >= limit]
        left_over = len(looked_at) - len(taken)
        out.commit({i: pairs[i][0] for i in taken})
    return out
