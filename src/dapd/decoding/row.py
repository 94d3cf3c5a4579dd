"""One text on its way from masks to tokens: what the host knows of it between passes."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import cached_property
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dapd.canvas import Canvas
from dapd.decoding.options import Options, Reuse
from dapd.decoding.step import Outcome
from dapd.errors import DapdError, StrategyContractError
from dapd.models.base import MaskedLM
from dapd.models.columns import width
from dapd.strategies.base import Selects, needs_of

Columns = slice | Int[Tensor, " s"]
"""Positions of a row: a slice where they lie side by side, else their numbers, from left to right."""


class Constraint(Protocol):
    """A form that a text must have, such as a pattern. Rows with the same constraint object are decided together."""

    def check(self, canvas: Canvas) -> None:
        """Refuse a canvas that cannot be filled with a text of the form."""
        ...

    def tokens(self, scores: Float[Tensor, "n vocab"], canvas: Canvas, window: slice) -> Int[Tensor, " n"]:
        """The tokens at a window's masks of one text that has the form and fits the canvas, the best such text.

        Whatever part of them is committed, the rest of the canvas can still be completed to a text of the form. The
        scores are those of each token at each position of the window; forbidden ones have the lowest finite score.
        """
        ...

    def forced(self, canvas: Canvas, window: slice) -> Bool[Tensor, " n"]:
        """The masks of a window at which the form leaves a single token, whatever the model predicts."""
        ...


class Row:
    """One text that is being decoded. It has its own block, step count and end, whichever rows share its passes."""

    def __init__(
        self,
        model: MaskedLM,
        canvas: Canvas,
        strategy: Selects,
        options: Options,
        *,
        name: Hashable,
        seed: int,
        constraint: Constraint | None = None,
    ) -> None:
        self.name = name
        self.constraint = constraint
        self.strategy = strategy
        self.options = options
        self.needs = needs_of(strategy)
        self.blocks = canvas.blocks(options.block_length, options.n_blocks)
        self.keeps = options.reuse is not Reuse.NONE
        """Whether its keys and values are kept from pass to pass."""
        _check(model, canvas, self)
        self.lookback = model.lookback
        self.eos_id = model.profile.eos_id
        self.banned = frozenset(options.sampling.banned(model.profile) if constraint is None else ())
        """The ids that are never predicted. A form may demand one of them."""
        # A copy: what the caller writes into its own tensor later does not reach this row.
        self.canvas = replace(canvas, tokens=canvas.tokens.clone())
        self.eos_run = None if canvas.n_new is None else options.eos_run
        """Confidence from which a run of EOS is committed; None in a template, which has no such end."""
        self.masked = self.canvas.masked
        self.masks = [int(self.masked[block].sum()) for block in self.blocks]
        """The number of masks in each block at the start."""
        self.left = list(self.masks)
        """The number of masks in each block now."""
        self.total = int(canvas.slots.sum())
        self.block = 0
        self.step = 0
        """Passes used in the active block."""
        self.passes = 0
        self.began = 0.0
        """When its first pass began."""
        self.idle = 0
        """Consecutive passes without a commit."""
        self.memory: object = None
        """Its strategy's memory: the row's part of every tensor that the strategy returned."""
        self.age = torch.zeros(canvas.length, dtype=torch.long) if options.reuse is Reuse.SETTLED else None
        """Passes since each position was decided, where settled ones are reused."""
        self.place: int | None = None
        """The row's place among the kept keys and values."""
        self.recordable = False
        """Whether its passes may be recorded."""
        self._generator = torch.Generator(model.device).manual_seed(seed)
        """Every row has its own generator, so that rows which share its passes change nothing."""
        self._drawn: dict[str, Tensor] = {}
        """Random numbers for the next pass, by their purpose, once they are drawn."""
        self._go_to_block_with_masks()

    @property
    def length(self) -> int:
        return self.canvas.length

    @property
    def done(self) -> bool:
        return self.block == len(self.blocks)

    @cached_property
    def rule(self) -> Hashable:
        """What rows must have in common for one call of `select` to decide them."""
        return (
            self.strategy if has_hash(self.strategy) else id(self.strategy),
            self.options.sampling,
            self.options.confidence_dtype,
            self.eos_run,
            self.options.record_edges,
            self.options.record_top,
            id(self.constraint),
        )

    @property
    def window(self) -> slice:
        """The positions that the strategy sees. With reuse=prefix or dual these are never more than the block."""
        if self.needs.sees == "canvas":
            return slice(0, self.length)
        if self.needs.sees == "region" and self.options.reuse in (Reuse.NONE, Reuse.SETTLED):
            return slice(self.blocks[0].start, self.length)
        return self.blocks[self.block]

    @property
    def choices(self) -> Bool[Tensor, " n"]:
        """The positions of the window that may be committed: the masks of the active block."""
        block = self.blocks[self.block]
        choices = torch.zeros_like(self.masked)
        choices[block] = self.masked[block]
        return choices[self.window]

    @property
    def counts(self) -> tuple[int, ...]:
        """The numbers of `Progress`, in order."""
        n_blocks = sum(masks > 0 for masks in self.masks)
        return sum(self.left), self.total, self.masks[self.block], self.step, n_blocks

    def columns(self) -> Columns:
        """The positions that the next pass has to compute."""
        block = self.blocks[self.block]
        reuse = self.options.reuse
        if not self.keeps or self.options.is_fresh(self.step):
            return slice(0, self.length)
        if reuse is Reuse.PREFIX:
            return slice(block.start, self.length)
        return block if reuse is Reuse.DUAL else self._unsettled()

    def _unsettled(self) -> Int[Tensor, " s"]:
        """Masks, the positions that predict them, and what was decided a moment ago."""
        assert self.age is not None
        due = self.masked | (self.age < self.options.settle)
        for back in range(1, self.lookback + 1):
            due[:-back] |= self.masked[back:]
        return due.nonzero().flatten()

    def repeats(self, committed: int, commit: Bool[Tensor, " n"], token: Int[Tensor, " n"]) -> bool:
        """Whether the next pass can replay the recording of this one: same block, same columns, nothing to draw.

        `committed` is the number of positions in `commit`, which the caller counts for all rows at once.
        """
        options = self.options
        same_columns = options.is_fresh(self.step) == options.is_fresh(self.step + 1)
        if self.keeps and (options.reuse is Reuse.SETTLED or not same_columns):
            return False
        if self.needs.draws or self._begins_shifted_block() or committed >= self.left[self.block]:
            return False
        return not (options.early_stop and self.tail(self.canvas.commit(self.window, commit, token)).any())

    def draw(self, purpose: str, *more: int) -> Float[Tensor, n * more]:
        """Uniform(0, 1) numbers for the window. They stay the same until the row advances, so that a pass which failed
        can be repeated."""
        if purpose not in self._drawn:
            shape = (width(self.window), *more)
            numbers = torch.rand(shape, generator=self._generator, dtype=torch.float64, device=self._generator.device)
            self._drawn[purpose] = numbers.clamp_min(torch.finfo(torch.float64).tiny)  # their logarithms are taken
        return self._drawn[purpose]

    def allowed(self, outcome: Outcome) -> Bool[Tensor, " n"]:
        """The positions to commit: those that were selected, changed where block or constraint demand it.

        It is an error if more consecutive passes commit nothing than the strategy may leave idle.
        """
        choices = self.choices
        self._check_outcome(outcome, choices)
        commit = choices & (choices.cumsum(-1) == 1) if self._begins_shifted_block() else outcome.commit
        if self.constraint is not None:
            commit = self._with_forced(self.constraint, commit, outcome.token)
        self.idle = 0 if commit.any() else self.idle + 1
        if self.idle > self.needs.max_idle:
            raise StrategyContractError(
                f"strategy {type(self.strategy).__name__} selected nothing (step {self.passes}, row {self.name}) with "
                f"{self.left[self.block]} masks left; it must select at least one position"
            )
        return commit

    def advance(self, canvas: Canvas) -> None:
        """Go on with the canvas as a pass has left it: in the same block, or in the next one that holds masks."""
        if self.age is not None:
            self.age = torch.where(self.masked, 0, self.age + 1)
        self._drawn.clear()
        self.canvas = canvas
        self.masked = canvas.masked
        self.left[self.block] = int(self.masked[self.blocks[self.block]].sum())
        if not self.masked.any():  # an early stop fills the later blocks, too
            self.left = [0] * len(self.blocks)
        self.step += 1
        self.passes += 1
        self._go_to_block_with_masks()

    def _with_forced(
        self, constraint: Constraint, commit: Bool[Tensor, " n"], token: Int[Tensor, " n"]
    ) -> Bool[Tensor, " n"]:
        """What to commit, together with every position at which the constraint leaves a single token.

        A model that has learned several forms of a text, such as the keys of a record in several orders, predicts a
        mixture of them. Once the forced tokens are in place it predicts the form that is asked for. So the first pass
        of a block commits these alone (and the first position, where no later pass predicts it), and every later pass
        adds those that its own commits force.
        """
        if self.step == 0 and not self._begins_shifted_block():
            forced = constraint.forced(self.canvas, self.window) & self.choices
            commit = forced if forced.any() else commit
        canvas = self.canvas.commit(self.window, commit, token)
        return commit | (constraint.forced(canvas, self.window) & self.choices)

    def _go_to_block_with_masks(self) -> None:
        while not self.done and not self.left[self.block]:
            self.block += 1
            self.step = 0

    def _begins_shifted_block(self) -> bool:
        """Whether this pass commits only the first masked position, as Fast-dLLM does for Dream when a block starts.

        Later passes of the block compute no column that predicts its first position.
        """
        return self.lookback > 0 and self.step == 0 and self.options.reuse in (Reuse.PREFIX, Reuse.DUAL)

    def tail(self, canvas: Canvas) -> Bool[Tensor, " length"]:
        """All masks, if there is an EOS and no mask before the first one; else none. A template has no such end."""
        masked = canvas.masked
        ends = (canvas.tokens[canvas.start :] == self.eos_id).nonzero()
        open_ended = canvas.n_new is not None and len(ends) > 0
        if open_ended and not masked[: canvas.start + int(ends[0])].any():
            return masked
        return torch.zeros_like(masked)

    def _check_outcome(self, outcome: Outcome, choices: Bool[Tensor, " n"]) -> None:
        where = f"step {self.passes}, row {self.name}"
        # `x < inf` is False for nan as well as for inf: one comparison finds both.
        if not (outcome.confidence[choices] < torch.inf).all():
            raise DapdError(f"the model's logits are not finite (nan) at {where}: decoding stops")
        illegal = int((outcome.commit & ~choices).sum())
        if illegal:
            raise StrategyContractError(
                f"strategy {type(self.strategy).__name__} selected {illegal} positions that are not masked, {where}"
            )
        if self.banned.intersection(outcome.token[outcome.commit].tolist()):
            raise DapdError(f"no token is left at {where}: the model rules out (-inf) all that may be predicted")


def has_hash(strategy: Selects) -> bool:
    """Whether equal strategies can be recognised as equal."""
    try:
        hash(strategy)
    except TypeError:
        return False
    return True


def _check(model: MaskedLM, canvas: Canvas, row: Row) -> None:
    """Mistakes in the arguments, reported before the first pass."""
    if canvas.length > model.max_length:
        raise DapdError(
            f"the canvas is {canvas.length} tokens long (prompt and new tokens); the model takes {model.max_length}"
        )
    if canvas.mask_id != model.profile.mask_id:
        raise DapdError(f"the canvas marks masks with id {canvas.mask_id}, the model with {model.profile.mask_id}")
    steps = row.needs.steps
    n_blocks = max(1, len(row.blocks))
    if canvas.n_new is not None and steps is not None and steps % n_blocks:
        raise DapdError(f"steps is {steps}; it must be a multiple of the number of blocks, {n_blocks}")
    sampling = row.options.sampling
    for name, ids in (("suppress", sampling.suppress), ("bias", [token for token, _ in sampling.bias])):
        outside = [token for token in ids if token >= model.vocab_size]
        if outside:
            raise DapdError(
                f"{name} names token id {outside[0]}, outside of the vocabulary (0..{model.vocab_size - 1})"
            )
    if len(sampling.banned(model.profile)) >= model.vocab_size:
        raise DapdError("every token is suppressed: there is nothing left to predict")
    if row.constraint is not None:
        row.constraint.check(canvas)
    if row.needs.sees == "canvas" and row.keeps:
        raise DapdError(f"strategy {type(row.strategy).__name__} looks at the whole canvas; reuse must be none")
    if row.needs.attention is not None:
        if not model.n_layers:
            raise DapdError(
                f"strategy {type(row.strategy).__name__} reads attention, and the model {type(model).__name__} shows "
                "none (its n_layers is 0); take a strategy that reads none, such as fast-dllm"
            )
        row.needs.attention.resolve(model.n_layers)
