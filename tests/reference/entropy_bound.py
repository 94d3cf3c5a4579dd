"""EB-Sampler (spec 4): the largest prefix whose entropies, the greatest aside, sum to at most gamma."""

from __future__ import annotations

from typing import Literal

from reference.common import Decoded, best, entropy, forbid, masked_in, ranked
from reference.network import Sequence, columns, predictions


def count(entropies: list[float], gamma: float) -> int:
    """How many of the positions, in order, are committed."""
    n = 0
    while n < len(entropies) and sum(entropies[: n + 1]) - max(entropies[: n + 1]) <= gamma:
        n += 1
    return max(1, n)


def decode(
    sequence: Sequence,
    prompt: list[int],
    n_new: int,
    *,
    gamma: float,
    order: Literal["confidence", "entropy"],
    block_length: int,
    reuse: Literal["none", "prefix", "dual"] = "none",
) -> Decoded:
    mask_id = sequence.config.profile.mask_id
    out = Decoded([*prompt, *[mask_id] * n_new])
    for first in range(len(prompt), len(out.tokens), block_length):
        stop, fresh = first + block_length, True
        while left := masked_in(out.tokens, mask_id, first, stop):
            seen = predictions(sequence, out.tokens, columns(reuse, first, stop, len(out.tokens), fresh=fresh))
            rows = {i: forbid(seen[i].double(), mask_id) for i in left}
            h = {i: entropy(rows[i]) for i in left}
            token, confidence = {}, {}
            for i in left:
                token[i], confidence[i] = best(rows[i])
            proxy = confidence if order == "confidence" else {i: -h[i] for i in left}
            by_error = ranked(left, proxy)
            out.commit({i: token[i] for i in by_error[: count([h[i] for i in by_error], gamma)]})
            fresh = False
    return out
