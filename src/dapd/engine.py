"""The loop: forward, observe, select, commit, as a generator of steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dapd.canvas import Canvas
from dapd.errors import DapdError, StrategyContractError, unknown
from dapd.models.base import Capture, MaskedLM, Prediction
from dapd.models.cache import KVCache
from dapd.sampling import Sampling, choose
from dapd.strategies.base import AttentionNeed, Observation, Precision, Progress, Sees, Selection, Selects


class Reuse(StrEnum):
    """Which columns are not computed again inside a block. Everything but `none` is an approximation."""

    NONE = "none"
    PREFIX = "prefix"
    """Fast-dLLM's prefix cache: what lies before the block. In a single block that is the prompt."""
    DUAL = "dual"
    """Fast-dLLM's dual cache: what lies before and behind the block."""

    @classmethod
    def _missing_(cls, value: object) -> Reuse:
        raise unknown("reuse", str(value), [mode.value for mode in cls])

    def span(self, block: slice, length: int, *, fresh: bool) -> slice:
        """The columns to compute."""
        if fresh or self is Reuse.NONE:
            return slice(0, length)
        return slice(block.start, length if self is Reuse.PREFIX else block.stop)


@dataclass(frozen=True)
class Options:
    """How the loop runs, whatever the strategy. The defaults are the paper's single block."""

    block_length: int | None = None
    """Columns per block, decoded left to right; None: one block."""
    reuse: Reuse = Reuse.NONE
    """Keys and values that are kept: none, prefix, dual (the latter two are approximate)."""
    refresh: int | None = None
    """With reuse: recompute everything every so many steps; None: only at the start of a block, as Fast-dLLM."""
    early_stop: bool = False
    """A row is done when everything before its first EOS is decided; what is left becomes EOS."""
    sampling: Sampling = field(default_factory=Sampling)
    confidence_dtype: Precision | None = None
    """Precision of the softmax that decisions use: model, float32, float64; None: what the strategy asks for."""
    seed: int | tuple[int, ...] = 0
    """Seed of the draws: row i uses seed + i, or the i-th of a tuple."""
    record_edges: bool = False
    """Keep the dependency graph of every step in the step; traces also get the confidence of what stayed masked."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reuse", Reuse(self.reuse))
        if self.refresh is not None and self.refresh < 1:
            raise DapdError(f"refresh is {self.refresh}; it must be at least 1")
        if self.refresh is not None and self.reuse is Reuse.NONE:
            raise DapdError("refresh is set but nothing is reused; set reuse to prefix or dual")
        if self.confidence_dtype not in (None, "model", "float32", "float64"):
            raise DapdError(f"confidence_dtype is {self.confidence_dtype!r}; allowed: model, float32, float64")


@dataclass(frozen=True)
class Step:
    """One forward pass and what came of it. Light: no logits."""

    index: int
    """Forward passes before this one."""
    window: slice
    """The canvas columns that n runs over."""
    active: Bool[Tensor, " batch"]
    """Rows that used this pass; for the others it does not count."""
    commit: Bool[Tensor, "batch n"]
    token: Int[Tensor, "batch n"]
    confidence: Float[Tensor, "batch n"]
    tail: Bool[Tensor, "batch length"] | None
    """Masks that an early stop filled with EOS."""
    edges: Bool[Tensor, "batch n n"] | None
    canvas: Canvas
    """The canvas after the commit."""


def decode(model: MaskedLM, canvas: Canvas, strategy: Selects, options: Options | None = None) -> Iterator[Step]:
    """Fill every mask of the canvas. Mistakes in the arguments are reported at once, before the first step."""
    return _Run(model, canvas, strategy, options or Options()).steps()


class _Run:
    """The state of one decoding. Host-side counts of masks come with the one transfer per step."""

    def __init__(self, model: MaskedLM, canvas: Canvas, strategy: Selects, options: Options) -> None:
        self.model, self.canvas, self.strategy, self.options = model, canvas, strategy, options
        self.needs = Needs.of(strategy)
        self.name = type(strategy).__name__
        self.blocks = canvas.blocks(options.block_length)
        self.index = 0
        self.memory: object = None
        self.idle = [0] * canvas.batch
        self.cache = None if options.reuse is Reuse.NONE else KVCache()
        self.valid = None if bool(canvas.valid.all()) else canvas.valid
        membership = torch.zeros(canvas.length, max(1, len(self.blocks)), device=canvas.tokens.device)
        for number, block in enumerate(self.blocks):
            membership[block, number] = 1
        self.membership = membership
        self.per_block = self.masks_per_block(canvas)
        self.left: list[list[int]] = self.per_block.long().tolist()
        self.generators = self._generators()
        self.first = self._first_columns()
        self._check_arguments()

    def steps(self) -> Iterator[Step]:
        for number in range(len(self.blocks)):
            self.block, self.block_step = self.blocks[number], 0
            self.row_steps = torch.zeros_like(self.canvas.padding)
            while any(row[number] for row in self.left):
                yield self.step(number)

    @torch.no_grad()
    def step(self, number: int) -> Step:
        """One pass of the paper's loop: forward, observe, select, commit."""
        window = self.window()
        seen = self.observe(self.forward(window), window, number)
        selection = self.strategy.select(seen, self.memory)
        commit = self.commitment(selection, seen)
        canvas = self.canvas.commit(window, commit, seen.token)
        tail = self.tail(canvas) if self.options.early_stop else None
        if tail is not None:
            eos = torch.full_like(canvas.tokens, self.model.profile.eos_id)
            canvas = canvas.commit(slice(0, canvas.length), tail, eos)
        active = seen.masked.any(-1)
        self.check(seen, commit, canvas, number)
        self.memory = _keep(active, selection.memory, self.memory)
        self.canvas = canvas
        edges = selection.edges if self.options.record_edges else None
        step = Step(self.index, window, active, commit, seen.token, seen.confidence, tail, edges, canvas)
        self.index, self.block_step, self.row_steps = self.index + 1, self.block_step + 1, self.row_steps + active
        return step

    def window(self) -> slice:
        """The columns the strategy sees; with reuse, where only the block is computed anew, never more than that."""
        match self.needs.sees:
            case "region" if self.options.reuse is Reuse.NONE:
                return slice(self.blocks[0].start, self.canvas.length)
            case "canvas":
                return slice(0, self.canvas.length)
            case _:
                return self.block

    def forward(self, window: slice) -> Prediction:
        canvas, refresh = self.canvas, self.options.refresh
        fresh = self.block_step == 0 or (refresh is not None and self.block_step % refresh == 0)
        span = self.options.reuse.span(self.block, canvas.length, fresh=fresh)
        capture = self.needs.capture(self.model, span, window, canvas.length)
        prediction = self.model(canvas.tokens, span, window, valid=self.valid, cache=self.cache, capture=capture)
        back = self.needs.back(self.model)
        if capture is None or prediction.attention is None or not back:
            return prediction
        # Each row's own predictor; the first column of a row, with nothing to its left, stands for itself.
        column = torch.arange(window.start, window.stop, device=canvas.tokens.device) - back
        first = canvas.padding.clamp(capture.queries.start, capture.queries.stop - 1)
        row = torch.maximum(column[None], first[:, None]) - capture.queries.start
        rows = row[..., None].expand(-1, -1, prediction.attention.shape[-1])
        return dataclasses.replace(prediction, attention=prediction.attention.gather(1, rows))

    def observe(self, prediction: Prediction, window: slice, number: int) -> Observation:
        """Tokens, confidences and progress at the window's positions."""
        canvas, profile, sampling = self.canvas, self.model.profile, self.options.sampling
        masked = canvas.masked & (self.membership[:, number] > 0)
        banned = [profile.mask_id] + [profile.eos_id] * (sampling.eos == "ban")
        deferred = [i for i in (profile.eos_id, profile.eot_id) if i is not None] if sampling.eos == "defer" else []
        precision = self.options.confidence_dtype or self.needs.precision
        dtype = prediction.logits.dtype if precision == "model" else getattr(torch, precision)
        vocab = prediction.logits.shape[-1]
        uniform = self.draw((window.stop - window.start, vocab), number) if sampling.temperature > 0 else None
        choice = choose(prediction.logits, sampling, uniform, banned=banned, deferred=deferred, dtype=dtype)
        progress = Progress(
            remaining=canvas.masked.sum(-1),
            total=canvas.slots.sum(-1),
            block_total=self.per_block[:, number].long(),
            step=self.row_steps,
            n_blocks=(self.per_block > 0).sum(-1),
        )
        noise = self.draw((window.stop - window.start,), number) if self.needs.draws else None
        return Observation(
            masked=masked[:, window],
            token=choice.token,
            confidence=choice.confidence,
            logits=choice.logits,
            current=canvas.tokens[:, window],
            progress=progress,
            window=window,
            block=self.block,
            valid=canvas.valid[:, window],
            attention=prediction.attention,
            noise=noise,
        )

    def commitment(self, selection: Selection, seen: Observation) -> Bool[Tensor, "batch n"]:
        """The strategy's choice, except where Fast-dLLM's cache for shifted models starts a block.

        There the first pass of a block commits its first position and nothing else: the later passes, which compute the
        block alone, have no row that predicts it.
        """
        if not hasattr(selection, "commit"):
            raise StrategyContractError(f"strategy {self.name} answered {type(selection).__name__}, not a Selection")
        commit = selection.commit
        if commit.shape != seen.masked.shape or commit.dtype != torch.bool:
            raise StrategyContractError(
                f"strategy {self.name} selected a {commit.dtype} tensor of shape {list(commit.shape)}; "
                f"it must be bool and of shape {list(seen.masked.shape)}"
            )
        if self.cache is None or self.model.lookback == 0 or self.block_step > 0:
            return commit
        return seen.masked & (seen.masked.cumsum(-1) == 1)

    def tail(self, canvas: Canvas) -> Bool[Tensor, "batch length"]:
        """The masks of rows with nothing masked before their first EOS; a template that is filled has no such end."""
        if canvas.n_new is None:
            return torch.zeros_like(canvas.masked)
        region = torch.arange(canvas.length, device=canvas.tokens.device) >= canvas.start
        eos = (canvas.tokens == self.model.profile.eos_id) & region
        behind = eos.cumsum(-1) > 0
        done = eos.any(-1) & ~(canvas.masked & ~behind).any(-1)
        return canvas.masked & done[:, None]

    def check(self, seen: Observation, commit: Bool[Tensor, "batch n"], canvas: Canvas, number: int) -> None:
        """The one transfer of a step: the contract, the numbers, and how many masks each row has left in each block."""
        flags = torch.stack(
            (
                commit.sum(-1),
                (commit & ~seen.masked).sum(-1),
                (seen.masked & ~seen.confidence.isfinite()).sum(-1),
            ),
            -1,
        )
        report = torch.cat((flags, self.masks_per_block(canvas).long()), -1).tolist()
        for row, (committed, illegal, not_finite, *left) in enumerate(report):
            if not_finite:
                raise DapdError(
                    f"the model's logits are not finite (nan) at step {self.index}, row {row}: decoding stops"
                )
            if illegal:
                raise StrategyContractError(
                    f"strategy {self.name} selected {illegal} positions that are not masked, "
                    f"step {self.index}, row {row}"
                )
            if self.left[row][number] and not committed:
                self.idle[row] += 1
                if self.idle[row] > self.needs.max_idle:
                    raise StrategyContractError(
                        f"strategy {self.name} selected nothing (step {self.index}, row {row}) with "
                        f"{self.left[row][number]} masks left; it must select at least one position"
                    )
            else:
                self.idle[row] = 0
            self.left[row] = left

    def masks_per_block(self, canvas: Canvas) -> Float[Tensor, "batch blocks"]:
        return canvas.masked.float() @ self.membership

    def draw(self, shape: tuple[int, ...], number: int) -> Float[Tensor, "batch ..."]:
        """Uniform(0, 1) numbers for the window's columns.

        A row draws for the columns it would have alone, and nothing while it sits out: neighbours change nothing.
        """
        device, window = self.canvas.tokens.device, self.window()
        out = torch.full((self.canvas.batch, *shape), 0.5, dtype=torch.float64, device=device)
        for row, generator in enumerate(self.generators):
            if self.left[row][number]:
                own = max(window.start, self.first[row]) - window.start
                size = (shape[0] - own, *shape[1:])
                out[row, own:] = torch.rand(size, generator=generator, dtype=torch.float64, device=device)
        return out.clamp_min(torch.finfo(torch.float64).tiny)

    def _generators(self) -> list[torch.Generator]:
        seed, batch = self.options.seed, self.canvas.batch
        seeds = seed if isinstance(seed, tuple) else tuple(seed + row for row in range(batch))
        if len(seeds) != batch:
            raise DapdError(f"{len(seeds)} seeds for {batch} rows; give one number, or one per row")
        return [torch.Generator(self.canvas.tokens.device).manual_seed(s) for s in seeds]

    def _first_columns(self) -> list[int]:
        """Where each row's window would begin if it were decoded alone."""
        canvas = self.canvas
        if self.needs.sees == "canvas":
            return [int(pad) for pad in canvas.padding.tolist()]
        slots = canvas.slots.int().argmax(-1)
        return [int(i) for i in (slots if canvas.n_new is None else slots.clamp_max(canvas.start)).tolist()]

    def _check_arguments(self) -> None:
        model, canvas, n_blocks = self.model, self.canvas, len(self.blocks)
        if canvas.length > model.max_length:
            raise DapdError(
                f"the canvas is {canvas.length} tokens long (prompt and new tokens); the model takes {model.max_length}"
            )
        if canvas.mask_id != model.profile.mask_id:
            raise DapdError(f"the canvas marks masks with id {canvas.mask_id}, the model with {model.profile.mask_id}")
        steps = getattr(self.strategy, "steps", None)
        if canvas.n_new is not None and isinstance(steps, int) and steps % max(1, n_blocks):
            raise DapdError(f"steps is {steps}; it must be a multiple of the number of blocks, {n_blocks}")
        if self.needs.sees == "canvas" and self.options.reuse is not Reuse.NONE:
            raise DapdError(f"strategy {self.name} looks at the whole canvas; reuse must be none")


@dataclass(frozen=True)
class Needs:
    """What a strategy asks of the engine. Only `select` is required of it; everything else has a default."""

    attention: AttentionNeed | None
    sees: Sees
    precision: Precision
    draws: bool
    max_idle: int

    @classmethod
    def of(cls, strategy: Selects) -> Needs:
        if not isinstance(strategy, Selects) or isinstance(strategy, type):
            raise DapdError(f"{strategy!r} is not a strategy: it needs a method select(seen, memory)")
        return cls(
            attention=getattr(strategy, "attention", None),
            sees=getattr(strategy, "sees", "block"),
            precision=getattr(strategy, "precision", "float32"),
            draws=getattr(strategy, "draws", False),
            max_idle=getattr(strategy, "max_idle", 0),
        )

    def back(self, model: MaskedLM) -> int:
        """How far to the left of a column the query lies that stands for it."""
        return model.lookback if self.attention is not None and self.attention.rows == "predictor" else 0

    def capture(self, model: MaskedLM, span: slice, window: slice, length: int) -> Capture | None:
        """The attention to capture; for predictors from further left, as far as that is computed."""
        need = self.attention
        if need is None:
            return None
        queries = slice(max(window.start - self.back(model), span.start), window.stop)
        keys = window if need.keys == "window" else slice(0, length)
        return Capture(need.resolve(model.n_layers), queries, keys)


def _keep(active: Bool[Tensor, " batch"], new: Any, old: Any) -> Any:
    """`new` for the active rows and `old` for the others, through whatever a strategy's memory is made of."""
    if isinstance(new, Tensor):
        same = isinstance(old, Tensor) and old.shape == new.shape and new.shape[:1] == active.shape
        return torch.where(active.view(-1, *[1] * (new.dim() - 1)), new, old) if same else new
    if type(new) is not type(old):
        return new
    if dataclasses.is_dataclass(new) and not isinstance(new, type):
        fields = {f.name: _keep(active, getattr(new, f.name), getattr(old, f.name)) for f in dataclasses.fields(new)}
        return dataclasses.replace(new, **fields)
    if isinstance(new, dict):
        return {key: _keep(active, value, old.get(key)) for key, value in new.items()}
    if isinstance(new, list | tuple) and len(new) == len(old):
        kept = [_keep(active, a, b) for a, b in zip(new, old, strict=True)]
        return type(new)(*kept) if hasattr(new, "_fields") else type(new)(kept)
    return new
