"""From logits to a token and its confidence at every position: forbidden tokens, noise, the softmax's precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dapd import kernels
from dapd.errors import DapdError
from dapd.io.fields import check_types
from dapd.models.base import Profile

EosPolicy = Literal["none", "ban", "defer", "ban+defer"]
HOTTEST = 1000
"""The highest temperature. Much larger noise would lift forbidden tokens above the others, the mask among them."""
Pick = Callable[[Float[Tensor, "batch n vocab"]], Int[Tensor, "batch n"]]
"""Chooses a token at each position by the scores of all tokens; those that are forbidden have the lowest."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. The defaults are the paper's: the most likely token, nothing suppressed but the mask."""

    temperature: float = 0.0
    """0: the most likely token. Above: Gumbel noise, as LLaDA adds it."""
    top_p: float | None = None
    """Keep the most likely tokens of this total probability, also at temperature 0 (it raises confidences)."""
    top_k: int | None = None
    """Draw among this many of the likeliest tokens only, also at temperature 0."""
    tempered_confidence: bool = False
    """Take confidence from softmax(logits / temperature), as Dream does, not from the plain softmax, as LLaDA does."""
    eos: EosPolicy = "none"
    """none; ban: EOS is never predicted (LLaDA's logits_eos_inf); defer: EOS and end of turn keep their place as
    predictions but get confidence 0, so decoders that rank by confidence commit them last (LLaDA's
    confidence_eos_eot_inf); ban+defer: both, so that EOS is never predicted and end of turn comes last."""
    suppress: tuple[int, ...] = ()
    """Further token ids that are never predicted; the mask token never is."""
    bias: tuple[tuple[int, float], ...] = ()
    """(token id, number added to its logit) for some tokens."""

    def __post_init__(self) -> None:
        check_types(self)
        if not 0 <= self.temperature <= HOTTEST:
            raise DapdError(f"temperature is {self.temperature}; allowed: 0 to {HOTTEST}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise DapdError(f"top_p is {self.top_p}; allowed: above 0, up to 1")
        if self.top_k is not None and self.top_k < 1:
            raise DapdError(f"top_k is {self.top_k}; it must be at least 1")
        if any(i < 0 for i in self.suppress):
            raise DapdError(f"suppress is {self.suppress}; token ids are not negative")
        if any(token < 0 for token, _ in self.bias):
            raise DapdError(f"bias is {self.bias}; token ids are not negative")

    def banned(self, profile: Profile) -> list[int]:
        """The ids that are never predicted."""
        ban_eos = [profile.eos_id] if "ban" in self.eos else []
        return list(dict.fromkeys([profile.mask_id, *ban_eos, *profile.special, *self.suppress]))

    def deferred(self, profile: Profile) -> list[int]:
        """The ids that get confidence 0, so that they are committed last."""
        ends = [i for i in (profile.eos_id, profile.eot_id) if i is not None]
        return [i for i in ends if i not in self.banned(profile)] if "defer" in self.eos else []

    def greedy(self, vocab: int) -> bool:
        """Whether the choice is the most likely token of the whole vocabulary."""
        everything = (self.top_p is None or self.top_p >= 1) and (self.top_k is None or self.top_k >= vocab)
        return self.temperature == 0 and everything


@dataclass(frozen=True)
class Choice:
    """The token chosen at each position, its probability, and a way to the logits that this probability comes from."""

    token: Int[Tensor, "batch n"]
    confidence: Float[Tensor, "batch n"]
    make_logits: Callable[[], Float[Tensor, "batch n vocab"]]


def choose(
    logits: Float[Tensor, "batch n vocab"],
    sampling: Sampling,
    profile: Profile,
    dtype: torch.dtype,
    uniform: Float[Tensor, "batch n vocab"] | None = None,
    pick: Pick | None = None,
) -> Choice:
    """A token and its confidence at each position; `uniform` are the draws that a temperature needs.

    `pick` chooses the tokens by their scores; None: the best one at each position, regardless of the others.
    """
    banned = sampling.banned(profile)
    deferred = sampling.deferred(profile)
    logits = _biased(logits, sampling.bias)
    if pick is None and kernels.usable(logits) and sampling.greedy(logits.shape[-1]):
        from dapd.kernels import confidence as kernel

        if kernel.takes(logits, banned, deferred):
            token, probability = kernel.most_likely(logits, banned, deferred, dtype)
            return Choice(token, probability, lambda: _judged(logits, [*banned, *deferred], dtype))
    lowest = torch.finfo(logits.dtype).min
    allowed = _without(logits, banned)
    tempered = allowed / sampling.temperature if sampling.temperature > 0 else allowed
    dropped = _outside_nucleus(tempered, sampling.top_p, sampling.top_k)
    if dropped is not None:
        allowed = allowed.masked_fill(dropped, lowest)
        tempered = tempered.masked_fill(dropped, lowest)
    noisy = allowed if uniform is None else allowed.double() - sampling.temperature * torch.log(-torch.log(uniform))
    token = noisy.argmax(-1) if pick is None else pick(noisy)
    judged = _judged(tempered if sampling.tempered_confidence else allowed, deferred, dtype)
    confidence = judged.softmax(-1).gather(-1, token[..., None]).squeeze(-1)
    for late in deferred:
        confidence = torch.where(token == late, 0, confidence)
    return Choice(token, confidence, lambda: judged)


def _judged(logits: Float[Tensor, "*b v"], ids: Sequence[int], dtype: torch.dtype) -> Float[Tensor, "*b v"]:
    """Logits as decisions see them. Small temperatures and narrower dtypes make the lowest -inf, hence the clamp."""
    return _without(logits, ids).to(dtype).clamp_min(torch.finfo(dtype).min)


def _without(logits: Float[Tensor, "*b v"], ids: Sequence[int]) -> Float[Tensor, "*b v"]:
    """The logits with some tokens at the lowest finite value: -inf would turn into nan where p log p is taken."""
    if not ids:
        return logits
    out = logits.clone()
    for one in ids:  # an index tensor would be a transfer from the host
        out[..., one] = torch.finfo(logits.dtype).min
    return out


def _biased(logits: Float[Tensor, "*b v"], bias: Sequence[tuple[int, float]]) -> Float[Tensor, "*b v"]:
    """The logits with something added to those of some tokens."""
    if not bias:
        return logits
    out = logits.clone()
    for one, amount in bias:
        out[..., one] += amount
    return out


def _outside_nucleus(
    logits: Float[Tensor, "*b v"], top_p: float | None, top_k: int | None
) -> Bool[Tensor, "*b v"] | None:
    """Tokens that are not among the most likely ones: by top_p first, then by top_k, as in Dream. None: no limit."""
    dropped = None
    if top_p is not None and top_p < 1:
        ordered, order = logits.sort(descending=True, dim=-1)
        before = ordered.softmax(-1).cumsum(-1).roll(1, -1)
        before[..., 0] = 0
        dropped = torch.zeros_like(order, dtype=torch.bool).scatter(-1, order, before > top_p)
        logits = logits.masked_fill(dropped, torch.finfo(logits.dtype).min)
    if top_k is not None and top_k < logits.shape[-1]:
        rare = logits < logits.topk(top_k, -1).values[..., -1:]
        dropped = rare if dropped is None else dropped | rare
    return dropped
