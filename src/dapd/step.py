"""One pass of the paper's loop as a function of tensors: forward, observe, select, commit.

Nothing here reads a tensor on the host, and everything that differs between two decodings of the same shape comes in
through `State`: that is what lets a recorded pass be replayed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dapd.canvas import Canvas
from dapd.draws import Drawn
from dapd.errors import DapdError, StrategyContractError
from dapd.models.base import Capture, MaskedLM, Prediction
from dapd.models.cache import KVCache
from dapd.options import Options
from dapd.sampling import choose
from dapd.strategies.base import AttentionNeed, Observation, Precision, Progress, Sees, Selection, Selects, declared
from dapd.tree import keep_idle


@dataclass(frozen=True)
class Needs:
    """What a strategy asks of the engine. Only `select` is required of it; everything else has a default."""

    attention: AttentionNeed | None
    sees: Sees
    precision: Precision
    logits: bool
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
            logits=declared(strategy, "logits", True),
            draws=getattr(strategy, "draws", False),
            max_idle=getattr(strategy, "max_idle", 0),
        )

    def back(self, model: MaskedLM) -> int:
        """How far to the left of a column the query lies that stands for it."""
        return model.lookback if self.attention is not None and self.attention.rows == "predictor" else 0

    def capture(self, model: MaskedLM, first: int, window: slice, length: int) -> Capture | None:
        """The attention to capture; for predictors from further left, as far as that is computed."""
        need = self.attention
        if need is None:
            return None
        queries = slice(max(window.start - self.back(model), first), window.stop)
        keys = window if need.keys == "window" else slice(0, length)
        return Capture(need.resolve(model.n_layers), queries, keys)


@dataclass(frozen=True)
class Plan:
    """What is known of a pass before it starts."""

    number: int
    """Of the block."""
    block: slice
    window: slice
    """The columns predicted."""
    span: slice | None
    """The columns computed; None: `n_columns` of each row, those that are due."""
    n_columns: int
    only_first: bool
    """Whether it commits the first masked position alone, as Fast-dLLM's cache for shifted models starts a block."""


@dataclass(frozen=True)
class Start:
    """What a decoding starts with and never changes."""

    masks: Int[Tensor, " batch"]
    per_block: Int[Tensor, "batch blocks"]
    """Masks of each block."""
    n_blocks: Int[Tensor, " batch"]
    """Blocks that hold masks."""
    bounds: Int[Tensor, "2 blocks"]
    """The first column of each block, and the one behind its last."""

    @classmethod
    def of(cls, canvas: Canvas, blocks: Sequence[slice]) -> Start:
        columns = [(block.start, block.stop) for block in blocks] or [(0, 0)]
        bounds = torch.tensor(columns, device=canvas.tokens.device).T.contiguous()
        per_block = masks_per_block(canvas.masked, bounds)
        return cls(canvas.slots.sum(-1), per_block, (per_block > 0).sum(-1), bounds)


def masks_per_block(
    masked: Bool[Tensor, "batch length"], bounds: Int[Tensor, "2 blocks"]
) -> Int[Tensor, "batch blocks"]:
    """Counted in whole numbers: a matrix product would round them under autocast or TF32."""
    before = torch.nn.functional.pad(masked.cumsum(-1), (1, 0))
    return before[:, bounds[1]] - before[:, bounds[0]]


@dataclass(frozen=True)
class State:
    """What a pass reads, and leaves for the next one."""

    canvas: Canvas
    memory: object
    """The strategy's."""
    row_steps: Int[Tensor, " batch"]
    """Passes each row has used in the active block."""
    age: Int[Tensor, "batch length"] | None
    """Passes since a column was decided, where settled ones are reused."""
    start: Start


@dataclass(frozen=True)
class Outcome:
    """What came of a pass."""

    state: State
    active: Bool[Tensor, " batch"]
    commit: Bool[Tensor, "batch n"]
    token: Int[Tensor, "batch n"]
    confidence: Float[Tensor, "batch n"]
    tail: Bool[Tensor, "batch length"] | None
    edges: Bool[Tensor, "batch n n"] | None
    report: Int[Tensor, "batch facts"]
    """For the host: commits, illegal ones, confidences that are no numbers, masks left in each block, and, where
    settled columns are reused, how many are due."""


def weights_of(model: MaskedLM) -> Hashable:
    """Where a model's tensors lie: weights that were moved, cast or replaced lie elsewhere, or are of another kind."""
    found: list[Tensor] = []
    for name in ("parameters", "buffers"):
        found += getattr(model, name, tuple)()
    return tuple((weight.data_ptr(), weight.dtype) for weight in found)


@dataclass(frozen=True)
class Pass:
    """One decoding's model, strategy and options, and the pass that they make."""

    model: MaskedLM
    strategy: Selects
    needs: Needs
    options: Options
    cache: KVCache | None
    padded: bool
    weights: Hashable = ()
    """Of `weights_of`, where passes are recorded."""

    @cached_property
    def identity(self) -> Hashable:
        """What two decodings must have in common, besides shapes and plan, for one recording to serve both."""
        options = dataclasses.replace(self.options, seed=0, graphs=None)
        return self.strategy, options, self.padded, id(self.cache), self.weights

    def __call__(self, state: State, plan: Plan, draw: Callable[[int], Drawn] | None = None) -> Outcome:
        """Forward, observe, select, commit; `draw` makes what a temperature needs, given the size of the vocabulary."""
        masked = state.canvas.masked
        prediction = self.forward(state, plan)
        drawn = Drawn(None, None) if draw is None else draw(prediction.logits.shape[-1])
        seen = self.observe(prediction, state, masked, plan, drawn)
        selection = self.strategy.select(seen, state.memory)
        commit = self.commitment(selection, seen, plan)
        canvas = state.canvas.commit(plan.window, commit, seen.token)
        tail = self.tail(canvas) if self.options.early_stop else None
        if tail is not None:
            eos = torch.full_like(canvas.tokens, self.model.profile.eos_id)
            canvas = canvas.commit(slice(0, canvas.length), tail, eos)
        active = seen.masked.any(-1)
        after = State(
            canvas=canvas,
            memory=keep_idle(active, selection.memory, state.memory),
            row_steps=state.row_steps + active,
            # A row that sits out does not age: alone it would not have had this pass.
            age=None if state.age is None else torch.where(masked, 0, state.age + active[:, None]),
            start=state.start,
        )
        edges = selection.edges if self.options.record_edges else None
        report = self.report(seen, commit, after)
        return Outcome(after, active, commit, seen.token, seen.confidence, tail, edges, report)

    def forward(self, state: State, plan: Plan) -> Prediction:
        canvas, window = state.canvas, plan.window
        span = self.due_columns(state, plan.n_columns) if plan.span is None else plan.span
        first = 0 if plan.span is None else plan.span.start
        capture = self.needs.capture(self.model, first, window, canvas.length)
        valid = canvas.valid if self.padded else None
        prediction = self.model(canvas.tokens, span, window, valid=valid, cache=self.cache, capture=capture)
        back = self.needs.back(self.model)
        if capture is None or prediction.attention is None or not back:
            return prediction
        # Each row's own predictor; the first column of a row, with nothing to its left, stands for itself.
        column = torch.arange(window.start, window.stop, device=canvas.tokens.device) - back
        leftmost = canvas.padding.clamp(capture.queries.start, capture.queries.stop - 1)
        row = torch.maximum(column[None], leftmost[:, None]) - capture.queries.start
        rows = row[..., None].expand(-1, -1, prediction.attention.shape[-1])
        return dataclasses.replace(prediction, attention=prediction.attention.gather(1, rows))

    def observe(
        self, prediction: Prediction, state: State, masked: Bool[Tensor, "batch length"], plan: Plan, drawn: Drawn
    ) -> Observation:
        """Tokens, confidences and progress at the window's positions."""
        canvas, profile, sampling = state.canvas, self.model.profile, self.options.sampling
        precision = self.options.confidence_dtype or self.needs.precision
        choice = choose(
            prediction.logits,
            sampling,
            drawn.uniform,
            banned=[profile.mask_id] + [profile.eos_id] * (sampling.eos == "ban"),
            deferred=[i for i in (profile.eos_id, profile.eot_id) if i is not None] if sampling.eos == "defer" else [],
            dtype=prediction.logits.dtype if precision == "model" else getattr(torch, precision),
            keep_logits=self.needs.logits,
        )
        progress = Progress(
            remaining=masked.sum(-1),
            total=state.start.masks,
            block_total=state.start.per_block[:, plan.number],
            step=state.row_steps,
            n_blocks=state.start.n_blocks,
        )
        return Observation(
            masked=self.of_block(masked, plan),
            token=choice.token,
            confidence=choice.confidence,
            logits=choice.logits,
            current=canvas.tokens[:, plan.window],
            progress=progress,
            window=plan.window,
            block=plan.block,
            valid=canvas.valid[:, plan.window],
            attention=prediction.attention,
            noise=drawn.noise,
        )

    def of_block(self, masked: Bool[Tensor, "batch length"], plan: Plan) -> Bool[Tensor, "batch n"]:
        """The window's masks that lie in the active block."""
        if plan.window == plan.block:
            return masked[:, plan.window]
        column = torch.arange(plan.window.start, plan.window.stop, device=masked.device)
        inside: Tensor = (column >= plan.block.start) & (column < plan.block.stop)
        return masked[:, plan.window] & inside

    def commitment(self, selection: Selection, seen: Observation, plan: Plan) -> Bool[Tensor, "batch n"]:
        """The strategy's choice, except where the plan says otherwise."""
        name = type(self.strategy).__name__
        if not hasattr(selection, "commit"):
            raise StrategyContractError(f"strategy {name} answered {type(selection).__name__}, not a Selection")
        commit = selection.commit
        if commit.shape != seen.masked.shape or commit.dtype != torch.bool:
            raise StrategyContractError(
                f"strategy {name} selected a {commit.dtype} tensor of shape {list(commit.shape)}; "
                f"it must be bool and of shape {list(seen.masked.shape)}"
            )
        return seen.masked & (seen.masked.cumsum(-1) == 1) if plan.only_first else commit

    def tail(self, canvas: Canvas) -> Bool[Tensor, "batch length"]:
        """The masks of rows with nothing masked before their first EOS; a template that is filled has no such end."""
        if canvas.n_new is None:
            return torch.zeros_like(canvas.masked)
        region = torch.arange(canvas.length, device=canvas.tokens.device) >= canvas.start
        eos = (canvas.tokens == self.model.profile.eos_id) & region
        behind = eos.cumsum(-1) > 0
        done = eos.any(-1) & ~(canvas.masked & ~behind).any(-1)
        return canvas.masked & done[:, None]

    def report(self, seen: Observation, commit: Bool[Tensor, "batch n"], after: State) -> Int[Tensor, "batch facts"]:
        # Nan is not below infinity either.
        not_finite = seen.masked & ~(seen.confidence < torch.inf)
        facts = torch.stack((commit, commit & ~seen.masked, not_finite), -1).sum(1)
        left = masks_per_block(after.canvas.masked, after.start.bounds)
        due = () if after.age is None else (self.due(after).sum(-1, keepdim=True),)
        return torch.cat((facts, left, *due), -1)

    def due(self, state: State) -> Bool[Tensor, "batch length"]:
        """Columns that reuse of settled ones computes: masks, their predictors, and what was decided a moment ago."""
        assert state.age is not None
        masked = state.canvas.masked
        due = masked | (state.age < self.options.settle)
        for back in range(1, self.model.lookback + 1):
            due = due | torch.nn.functional.pad(masked[:, back:], (0, back))
        return due & state.canvas.valid

    def due_columns(self, state: State, count: int) -> Int[Tensor, "batch count"]:
        """The due columns of each row. What a row has fewer of is filled with its last one, which changes nothing."""
        due = self.due(state)
        column = torch.arange(due.shape[1], device=due.device).expand_as(due)
        last = (column * due).amax(-1, keepdim=True)
        place = torch.where(due, due.cumsum(-1) - 1, count)
        return last.repeat(1, count + 1).scatter(1, place, column)[:, :count]
