"""KLASS: positions that are confident and whose distribution has stopped moving."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dapd.errors import DapdError
from dapd.io.fields import check_types
from dapd.strategies.base import (
    Needs,
    Observation,
    Selection,
    Strategy,
    check_range,
    check_steps,
    order_score,
    top,
)
from dapd.strategies.topk import quota

TINY = 1e-12
"""Added to probabilities before their logarithm is taken, as in KLASS's own program."""

Unmask = Literal["all", "max_conf", "min_kl", "random"]


@dataclass(frozen=True)
class Memory:
    """The previous distribution and the last divergences of every position in the window."""

    start: Int[Tensor, " batch"]
    """First position of the window. If it has moved since, the memory belongs to other positions."""
    p: Float[Tensor, "batch n vocab"]
    kl: Float[Tensor, "batch n history"]


@dataclass(frozen=True)
class Klass(Strategy):
    """Commit positions of confidence above `confidence` with KL(now || before) below `kl` in the last `history` passes.

    If there are none, commit the most confident positions at LLaDA's rate. The divergences of a position are followed
    from the first pass on, before its block is active; so the strategy sees the whole generation region.
    """

    confidence: float = 0.9
    """A position is stable only above this confidence."""
    kl: float = 0.01
    """Divergence, in nats, below which a position is stable."""
    history: int = 2
    """Number of consecutive passes in which the divergence must be below `kl`."""
    steps: int | None = None
    """Total number of steps that sets the rate of the fallback; None: one position a step."""
    unmask: Unmask = "all"
    """Which of the positions that pass both thresholds to commit: all, the most confident one, the one with the least
    divergence, or a random one."""
    inclusive: bool = False
    """Let confidence equal to the threshold pass, as KLASS's sampler for Dream does."""

    def __post_init__(self) -> None:
        check_types(self)
        check_range("confidence", self.confidence, 0, 1)
        check_steps(self.steps)
        if self.kl < 0 or self.history < 1:
            raise DapdError(f"kl is {self.kl}, history {self.history}; kl must not be negative, history at least 1")

    @property
    def needs(self) -> Needs:
        draws = self.unmask == "random"
        return Needs(sees="region", precision="float64", draws=draws, steps=self.steps, recordable=True)

    def select(self, seen: Observation, memory: object = None, /) -> Selection:
        now = self.remember(seen, memory)
        stable = (now.kl < self.kl).all(-1) & (seen.progress.step >= self.history - 1)[:, None]
        bar = torch.ge if self.inclusive else torch.gt
        ready = seen.masked & stable & bar(seen.confidence, self.confidence)
        fallback = top(seen.confidence, seen.masked, quota(seen.progress, self.steps))
        commit = torch.where(ready.any(-1, keepdim=True), self.pick(ready, seen, now), fallback)
        return Selection(commit, now)

    def remember(self, seen: Observation, memory: object) -> Memory:
        """The memory with this pass added. Without a previous pass p counts as 0, so the first divergence is huge."""
        p = seen.logits.softmax(-1)
        start = seen.window[:, 0]
        cross = p.sum(-1) * math.log(TINY)
        past = p.new_zeros((*p.shape[:2], self.history))
        if isinstance(memory, Memory) and memory.p.shape == p.shape:
            same = (memory.start == start)[:, None]
            cross = torch.where(same, (p * (memory.p + TINY).log()).sum(-1), cross)
            past = torch.where(same[..., None], memory.kl, past)
        kl = (p * (p + TINY).log()).sum(-1) - cross
        return Memory(start, p, torch.cat((past[..., 1:], kl[..., None]), -1))

    def pick(self, ready: Bool[Tensor, "batch n"], seen: Observation, now: Memory) -> Bool[Tensor, "batch n"]:
        match self.unmask:
            case "all":
                return ready
            case "max_conf":
                return top(seen.confidence, ready, 1)
            case "min_kl":
                return top(-now.kl[..., -1], ready, 1)
            case "random":
                return top(order_score(seen, "random"), ready, 1)
