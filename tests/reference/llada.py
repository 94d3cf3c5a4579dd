"""LLaDA's own sampler (spec 1.5): a quota per step, the most confident masks of the block first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from reference.common import Decoded, forbid, masked_in, quota, ranked
from reference.network import Sequence, columns, predictions


def decode(
    sequence: Sequence,
    prompt: list[int],
    n_new: int,
    *,
    steps: int,
    block_length: int,
    order: Literal["confidence", "random", "margin", "entropy"] = "confidence",
    logits_eos_inf: bool = False,
    confidence_eos_eot_inf: bool = False,
    reuse: Literal["none", "prefix", "dual"] = "none",
    temperature: float = 0.0,
    uniform: Callable[[int], Tensor] | None = None,
    priority: Callable[[int], Tensor] | None = None,
) -> Decoded:
    """`uniform(step)` gives U of shape [length, vocab], `priority(step)` the random confidences of shape [length].

    With temperature both suppressions are kept, where upstream by an aliasing accident loses that of EOS.
    """
    ids = sequence.config.profile
    out = Decoded([*prompt, *[ids.mask_id] * n_new])
    n_blocks = n_new // block_length
    assert n_new % block_length == 0
    assert steps % n_blocks == 0
    for block in range(n_blocks):
        first = len(prompt) + block * block_length
        stop = first + block_length
        for k in quota(len(masked_in(out.tokens, ids.mask_id, first, stop)), steps // n_blocks):
            step = out.nfe
            left = masked_in(out.tokens, ids.mask_id, 0, stop)
            fresh = len(left) == block_length
            logits = predictions(sequence, out.tokens, columns(reuse, first, stop, len(out.tokens), fresh=fresh))
            token, score = {}, {}
            for i in left:
                row = forbid(logits[i], ids.mask_id)
                if logits_eos_inf:
                    row = forbid(row, ids.eos_id)
                noisy = row
                if temperature > 0:
                    noisy = row.double().exp() / (-uniform(step)[i].log()) ** temperature
                token[i] = int(noisy.argmax())
                if confidence_eos_eot_inf:
                    row = forbid(row, ids.eos_id, ids.eot_id)
                p = torch.softmax(row, 0)
                if order == "confidence":
                    score[i] = float(p[token[i]])
                elif order == "margin":
                    top = p.topk(2).values
                    score[i] = float(top[0] - top[1])
                elif order == "entropy":
                    score[i] = float((p * torch.log(p + 1e-10)).sum())
                else:
                    score[i] = float(priority(step)[i])
            out.commit({i: token[i] for i in ranked(list(token), score)[:k]})
    return out
