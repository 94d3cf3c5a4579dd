"""What a decoder sees, what it answers, and what it may ask for.

A strategy is a frozen dataclass with one method, `select`. Its fields are its hyperparameters. It is pure: what must be
carried from step to step goes in and out as `memory`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor

from dapd.errors import DapdError
from dapd.graph import ranks

Order = Literal["confidence", "entropy", "margin", "random"]
Precision = Literal["model", "float32", "float64"]
Sees = Literal["block", "region", "canvas"]


@dataclass(frozen=True)
class Progress:
    """How far each row is. Rows are independent: every count is a row's own."""

    remaining: Int[Tensor, " batch"]
    """Masks left in the whole canvas."""
    total: Int[Tensor, " batch"]
    """Masks at the start, in the whole canvas."""
    block_total: Int[Tensor, " batch"]
    """Masks at the start, in the active block."""
    step: Int[Tensor, " batch"]
    """Forward passes the row has used in the active block, this one not counted."""
    n_blocks: Int[Tensor, " batch"]
    """Blocks that hold masks of this row."""

    @cached_property
    def unmasked(self) -> Float[Tensor, " batch"]:
        """Fraction of the generation that is decided: 0 at the start, towards 1 at the end."""
        return 1 - self.remaining.double() / self.total.clamp_min(1)

    def steps_per_block(self, steps: int) -> Int[Tensor, " batch"]:
        """Each block's share of a total number of steps."""
        return (steps // self.n_blocks.clamp_min(1)).clamp_min(1)


@dataclass(frozen=True)
class Observation:
    """One forward pass as a decoder sees it, for the columns of a window."""

    masked: Bool[Tensor, "batch n"]
    """Positions that may be chosen: the masks of the active block. A row without any is finished for now."""
    token: Int[Tensor, "batch n"]
    """The token that would be committed at each position."""
    confidence: Float[Tensor, "batch n"]
    """Its probability."""
    logits: Float[Tensor, "batch n vocab"]
    """Logits in the decision's precision; forbidden tokens (the mask always) are at the lowest finite value. Without an
    entry per token (vocab is 0) for strategies that declare that they do not read them."""
    current: Int[Tensor, "batch n"]
    """What stands on the canvas now."""
    progress: Progress
    window: slice
    """The canvas columns that n runs over."""
    block: slice
    """The canvas columns of the active block."""
    valid: Bool[Tensor, "batch n"]
    """False on the padding of a batch."""
    attention: Float[Tensor, "batch n k"] | None = None
    noise: Float[Tensor, "batch n"] | None = None
    """Uniform(0, 1) draws for strategies that ask for them, from each row's own generator."""


@dataclass(frozen=True)
class Selection:
    """What to commit now, and what to remember."""

    commit: Bool[Tensor, "batch n"]
    memory: object = None
    """Handed back at the next step. Tensors in it have the batch as first dimension; rows that sit out keep theirs."""
    edges: Bool[Tensor, "batch n n"] | None = None
    """The dependency graph the choice was made on, for the trace: edges[i, j] means that j keeps i out."""


@dataclass(frozen=True)
class AttentionNeed:
    """Which attention a strategy wants."""

    layers: float | tuple[int, ...] = 0.3
    """The last so large a share of the layers (rounded up), or their indices."""
    keys: Literal["window", "canvas"] = "window"
    rows: Literal["position", "predictor"] = "position"
    """Whose query stands for column i where another row predicts it (Dream): the column's own, or the predictor's."""

    def __post_init__(self) -> None:
        fits = bool(self.layers) if isinstance(self.layers, tuple) else 0 < self.layers <= 1
        if not fits:
            raise DapdError(f"layers is {self.layers}; give a share in (0, 1] or layer indices such as 4,5,6")

    def resolve(self, n_layers: int) -> frozenset[int]:
        """Layer indices in a model of `n_layers`; negative ones count from the end."""
        if not isinstance(self.layers, tuple):
            first = math.floor(round((1 - self.layers) * n_layers, 9))
            return frozenset(range(first, n_layers))
        outside = [i for i in self.layers if not -n_layers <= i < n_layers]
        if outside:
            raise DapdError(f"layers {outside} do not exist; the model has layers 0..{n_layers - 1}")
        return frozenset(i % n_layers for i in self.layers)


@runtime_checkable
class Selects(Protocol):
    """Anything with `select` is a strategy; `Strategy` spells out what else it may declare."""

    def select(self, seen: Observation, memory: object = None, /) -> Selection: ...


@dataclass(frozen=True)
class Strategy:
    """Base of the strategies: what they need of the engine. Override what differs."""

    sees: ClassVar[Sees] = "block"
    """The window: the active block, the generation region from its first to its last column, or all of the canvas."""
    precision: ClassVar[Precision] = "float32"
    """The dtype of logits and confidence that the decision is made in, unless the options of the loop say otherwise."""

    recordable: ClassVar[bool] = False
    """Whether `select` is made of tensor operations alone, reads none of them on the host and remembers nothing on
    `self`: such a step may be recorded once and replayed. Who overrides `select` says it anew, as with `logits`."""

    @property
    def attention(self) -> AttentionNeed | None:
        """The attention it reads; None: none is captured."""
        return None

    @property
    def logits(self) -> bool:
        """Whether it reads `Observation.logits`; who says no spares the step a copy of them."""
        return True

    @property
    def draws(self) -> bool:
        """Whether it wants `Observation.noise`."""
        return False

    @property
    def max_idle(self) -> int:
        """Forward passes in a row after which a row must have committed something."""
        return 0

    def select(self, seen: Observation, memory: object = None, /) -> Selection:
        raise TypeError(f"{type(self).__name__} does not say what to select")


def declared(strategy: Selects, name: str, default: bool) -> bool:
    """What a strategy says of its `select`; what is inherited from above the class that defines that says nothing."""
    levels = [getattr(strategy, "__dict__", {}), *(vars(kind) for kind in type(strategy).__mro__)]
    for level in levels:
        if name in level:
            return bool(getattr(strategy, name))
        if "select" in level:
            return default
    return default


def top(
    score: Float[Tensor, "batch n"], masked: Bool[Tensor, "batch n"], count: Int[Tensor, " batch"] | int
) -> Bool[Tensor, "batch n"]:
    """The `count` best masked positions of each row; among equals the lowest position."""
    limit = count if isinstance(count, int) else count[:, None]
    return masked & (ranks(score, masked) < limit)


def entropy(logits: Float[Tensor, "*b vocab"]) -> Float[Tensor, "*b"]:
    """Entropy in nats."""
    log_p = logits.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1)


def order_score(seen: Observation, order: Order) -> Float[Tensor, "batch n"]:
    """A score by which positions are decided first: larger is sooner. As Dream defines them."""
    match order:
        case "confidence":
            return seen.confidence
        case "margin":
            best = seen.logits.softmax(-1).topk(2, dim=-1).values
            return best[..., 0] - best[..., 1]
        case "entropy":
            p = seen.logits.softmax(-1)
            return (p * (p + 1e-10).log()).sum(-1)
        case "random":
            assert seen.noise is not None
            return seen.noise


def check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise DapdError(f"{name} is {value!r}; allowed: {', '.join(allowed)}")


def check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise DapdError(f"{name} is {value}; allowed: {low:g} to {high:g}")


def check_steps(steps: int | None) -> None:
    if steps is not None and steps < 1:
        raise DapdError(f"steps is {steps}; it must be at least 1")


def rows(value: Bool[Tensor, " batch"], like: Bool[Tensor, "batch n"]) -> Bool[Tensor, "batch n"]:
    """A per-row condition on every position."""
    return value[:, None].expand_as(like)


__all__ = [
    "AttentionNeed",
    "Observation",
    "Order",
    "Precision",
    "Progress",
    "Selection",
    "Selects",
    "Strategy",
    "check_choice",
    "check_range",
    "check_steps",
    "declared",
    "entropy",
    "order_score",
    "rows",
    "top",
]
