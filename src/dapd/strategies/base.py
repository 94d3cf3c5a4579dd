"""The interface of a decoder: what it sees of a forward pass, what it answers, and what it may ask the loop for.

A strategy is a frozen dataclass with one method, `select`. Its fields are its hyperparameters. It keeps no state of its
own: what must be carried from pass to pass is returned as `memory` and comes back as an argument of the next pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dapd.errors import DapdError, StrategyContractError
from dapd.graph import ranks
from dapd.io.fields import check_types

Order = Literal["confidence", "entropy", "margin", "random"]
Precision = Literal["model", "float32", "float64"]
Sees = Literal["block", "region", "canvas"]
Keys = Literal["window", "canvas"]
Rows = Literal["position", "predictor"]


@dataclass(frozen=True)
class Progress:
    """How far each row has come. Rows are independent: every number is that of one row."""

    remaining: Int[Tensor, " batch"]
    """Masks left in the whole canvas."""
    total: Int[Tensor, " batch"]
    """Masks at the start, in the whole canvas."""
    block_total: Int[Tensor, " batch"]
    """Masks at the start, in the active block."""
    step: Int[Tensor, " batch"]
    """Forward passes the row has used in the active block, this one not counted."""
    n_blocks: Int[Tensor, " batch"]
    """Number of the row's blocks that held masks at the start."""

    @cached_property
    def unmasked(self) -> Float[Tensor, " batch"]:
        """Fraction of the generation that is decided: 0 at the start, towards 1 at the end."""
        # Not 1 - remaining / total, which is a little less than 0.1 where 1 of 10 is decided.
        return (self.total - self.remaining).double() / self.total.clamp_min(1)

    def steps_per_block(self, steps: int) -> Int[Tensor, " batch"]:
        """Each block's share of a total number of steps."""
        return (steps // self.n_blocks.clamp_min(1)).clamp_min(1)


@dataclass(frozen=True)
class Observation:
    """One forward pass as a decoder sees it: for each row, the columns of a window.

    The window is the active block, the generation region or the whole row, as `Needs.sees` asks. The windows of two
    rows may begin at different positions of their texts; `position` says which position each column is.
    """

    masked: Bool[Tensor, "batch n"]
    """Positions that may be chosen: the masks of the active block."""
    token: Int[Tensor, "batch n"]
    """The token that would be committed at each position."""
    confidence: Float[Tensor, "batch n"]
    """The probability of that token."""
    current: Int[Tensor, "batch n"]
    """The token that stands at each position now; the mask token where it is masked."""
    progress: Progress
    position: Int[Tensor, "batch n"]
    """Place of each column in its row, counted from the row's first token."""
    window: Int[Tensor, "batch 2"]
    """First position of the window and the first one after it. Columns outside of this range are padding."""
    block: Int[Tensor, "batch 2"]
    """First position of the active block and the first one after it."""
    make_logits: Callable[[], Float[Tensor, "batch n vocab"]]
    """Computes `logits` when it is first read; called at most once."""
    captured: Float[Tensor, "batch n k"] | None = None
    """The value of `attention`; None if the strategy did not ask for it."""
    drawn: Float[Tensor, "batch n"] | None = None
    """The value of `noise`; None if the strategy did not ask for it."""

    @property
    def attention(self) -> Float[Tensor, "batch n k"]:
        """Attention from each position to the window, or to the whole canvas, where `Needs.attention` asks for it.

        With keys="canvas" column k is the row's position k; columns behind the end of a shorter row hold 0.
        """
        if self.captured is None:
            raise _not_asked("attention", "attention=dapd.AttentionNeed()")
        return self.captured

    @property
    def noise(self) -> Float[Tensor, "batch n"]:
        """Uniform(0, 1) draws from each row's own generator, where `Needs.draws` asks for them."""
        if self.drawn is None:
            raise _not_asked("noise", "draws=True")
        return self.drawn

    @cached_property
    def logits(self) -> Float[Tensor, "batch n vocab"]:
        """Logits in the decision's precision; forbidden tokens (the mask always) are at the lowest finite value.

        They are computed when they are first read: most decoders never read them, and the copy holds the whole
        vocabulary for every position.

        float16 becomes float32: it holds neither the small number that keeps the logarithm of a probability finite nor
        the log-probability of a forbidden token, so every entropy would be nan.
        """
        logits = self.make_logits()
        return logits.float() if logits.dtype == torch.float16 else logits

    @cached_property
    def valid(self) -> Bool[Tensor, "batch n"]:
        """Whether a column lies in the window. Others are padding, and what they hold means nothing."""
        return (self.position >= self.window[:, :1]) & (self.position < self.window[:, 1:])


def _not_asked(what: str, need: str) -> DapdError:
    """The error for a strategy that reads a value which its `needs` do not ask for."""
    return DapdError(f"the strategy reads seen.{what} without asking for it: give its class needs = dapd.Needs({need})")


@dataclass(frozen=True)
class Selection:
    """What to commit now, and what to remember."""

    commit: Bool[Tensor, "batch n"]
    """Positions whose token is committed now."""
    memory: object = None
    """Whatever the strategy wants back at the next pass. Every tensor in it has the batch as its first dimension: rows
    join and leave between passes, and each takes its own part along."""
    edges: Bool[Tensor, "batch n n"] | None = None
    """The dependency graph the choice was made on, for the trace: edges[i, j] means that a taken j keeps i out."""


@dataclass(frozen=True)
class AttentionNeed:
    """Which attention a strategy wants."""

    layers: float | tuple[int, ...] = 0.3
    """A fraction: that share of the layers, from the last one back, rounded up. A tuple: layer indices."""
    keys: Keys = "window"
    """The columns to which attention is captured: those of the window, or all of the canvas."""
    rows: Rows = "position"
    """The query that stands for a position which another column predicts (Dream): its own, or that of its predictor."""

    def __post_init__(self) -> None:
        check_types(self)
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


@dataclass(frozen=True)
class Needs:
    """What a strategy asks of the loop. A strategy without `needs` gets these defaults."""

    attention: AttentionNeed | None = None
    """The attention it reads; None: none is captured, which costs nothing."""
    sees: Sees = "block"
    """The window: the active block, the generation region from its first to its last column, or the whole canvas."""
    precision: Precision = "float32"
    """The dtype of logits and confidence that the decision is made in, unless the options of the loop say otherwise."""
    draws: bool = False
    """Whether `select` reads `Observation.noise`, which is drawn only then."""
    max_idle: int = 0
    """How many consecutive forward passes may end without a commit."""
    steps: int | None = None
    """The total number of steps of its schedule, which the blocks must share evenly; None: it has no schedule."""
    recordable: bool = False
    """Whether `select` is made of tensor operations alone: it reads no tensor on the host and keeps nothing on `self`.
    Such a pass may be recorded as a CUDA graph. A subclass that overrides `select` with anything else must say False.
    """

    def __post_init__(self) -> None:
        check_types(self)


@runtime_checkable
class Selects(Protocol):
    """Anything with `select` is a strategy; an attribute `needs` says what else it asks for."""

    def select(self, seen: Observation, memory: object = None, /) -> Selection: ...


@dataclass(frozen=True)
class Strategy:
    """Base of the strategies of this package."""

    @property
    def needs(self) -> Needs:
        """What it asks of the loop."""
        return Needs()

    def select(self, seen: Observation, memory: object = None, /) -> Selection:
        raise TypeError(f"{type(self).__name__} does not say what to select")


def needs_of(strategy: object) -> Needs:
    """What a strategy asks of the loop; an object with nothing but `select` asks for nothing."""
    if not isinstance(strategy, Selects) or isinstance(strategy, type):
        raise DapdError(f"{strategy!r} is not a strategy: it needs a method select(seen, memory)")
    needs = getattr(strategy, "needs", Needs())
    if not isinstance(needs, Needs):
        raise DapdError(f"the needs of strategy {type(strategy).__name__} are {needs!r}; they must be a dapd.Needs")
    return needs


def check_selection(strategy: object, answer: object, shape: torch.Size) -> None:
    """Refuse a selection of the wrong form. `shape` is the number of rows and of columns in the window."""
    name = type(strategy).__name__
    if not hasattr(answer, "commit"):
        raise StrategyContractError(f"strategy {name} answered {type(answer).__name__}, not a Selection")
    wanted = [("selected", answer.commit, [*shape])]
    edges = getattr(answer, "edges", None)
    if edges is not None:
        wanted.append(("gave as edges", edges, [*shape, shape[1]]))
    for what, value, size in wanted:
        if not isinstance(value, Tensor):
            form = type(value).__name__
        elif value.dtype != torch.bool or [*value.shape] != size:
            form = f"{value.dtype} tensor of shape {[*value.shape]}"
        else:
            continue
        raise StrategyContractError(f"strategy {name} {what} a {form}; it must be a bool tensor of shape {size}")


def top(
    score: Float[Tensor, "batch n"], masked: Bool[Tensor, "batch n"], count: Int[Tensor, " batch"] | int
) -> Bool[Tensor, "batch n"]:
    """The `count` masked positions of each row with the highest scores; ties go to the lowest position."""
    limit = count if isinstance(count, int) else count[:, None]
    return masked & (ranks(score, masked) < limit)


def entropy(logits: Float[Tensor, "*b vocab"]) -> Float[Tensor, "*b"]:
    """Entropy in nats."""
    log_p = logits.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1)


def order_score(seen: Observation, order: Order) -> Float[Tensor, "batch n"]:
    """The score by which positions are ranked, the largest first, as Dream defines it for each order."""
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
            return seen.noise


def check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise DapdError(f"{name} is {value}; allowed: {low:g} to {high:g}")


def check_steps(steps: int | None) -> None:
    if steps is not None and steps < 1:
        raise DapdError(f"steps is {steps}; it must be at least 1")


def on_every_position(value: Bool[Tensor, " batch"], like: Bool[Tensor, "batch n"]) -> Bool[Tensor, "batch n"]:
    """A condition of each row, repeated at every position of it."""
    return value[:, None].expand_as(like)


__all__ = [
    "AttentionNeed",
    "Needs",
    "Observation",
    "Order",
    "Precision",
    "Progress",
    "Selection",
    "Selects",
    "Strategy",
    "check_range",
    "check_selection",
    "check_steps",
    "entropy",
    "needs_of",
    "on_every_position",
    "order_score",
    "top",
]
