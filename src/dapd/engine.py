"""The loop: forward, observe, select, commit, as a generator of steps."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dapd.canvas import Canvas
from dapd.draws import Drawn, Draws
from dapd.errors import DapdError, StrategyContractError
from dapd.models.base import MaskedLM
from dapd.models.cache import KVCache
from dapd.options import Options, Reuse
from dapd.replay import replays_for
from dapd.step import Needs, Outcome, Pass, Plan, Start, State, weights_of
from dapd.strategies.base import Selects
from dapd.tree import mapped

COLUMN_BUCKET = 32
"""Where rows compute columns of their own choice, their number is rounded up to a multiple of this."""


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


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Kernels and graphs are launched on torch's current device: among several it must be the model's."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


class _Run:
    """The host's side of one decoding: what to compute next, and what the one transfer per step says."""

    def __init__(self, model: MaskedLM, canvas: Canvas, strategy: Selects, options: Options) -> None:
        self.model, self.strategy, self.options = model, strategy, options
        self.needs = Needs.of(strategy)
        self.name = type(strategy).__name__
        self.blocks = canvas.blocks(options.block_length)
        self.start, self.length = canvas.start, canvas.length
        self.index = 0
        self.idle = [0] * canvas.batch
        self.due = [0] * canvas.batch
        self.draws = Draws(canvas, options.seed, whole_canvas=self.needs.sees == "canvas")
        self._check_arguments(canvas)
        self.replays = replays_for(model, strategy, options)
        self.padded = not bool(canvas.valid.all())
        self.plans: dict[Hashable, Plan] = {}
        age = torch.zeros_like(canvas.tokens) if options.reuse is Reuse.SETTLED else None
        # A copy: what a caller writes into its own tensors later reaches neither this decoding nor a recording.
        canvas = mapped(torch.clone, canvas)
        self.state = State(canvas, None, torch.zeros_like(canvas.padding), age, Start.of(canvas, self.blocks))
        self.left: list[list[int]] = self.state.start.per_block.tolist()

    def steps(self) -> Iterator[Step]:
        weights = () if self.replays is None else weights_of(self.model)
        shape = (tuple(self.state.canvas.tokens.shape), self.padded, weights)
        cache = self.borrow(shape)
        work = Pass(self.model, self.strategy, self.needs, self.options, cache, self.padded, weights)
        try:
            for number in range(len(self.blocks)):
                self.block_step = 0
                self.state = replace(self.state, row_steps=torch.zeros_like(self.state.row_steps))
                while any(row[number] for row in self.left):
                    yield self.step(work, number)
        finally:
            if cache is not None and self.replays is not None:
                self.replays.give_back(shape, cache)

    @torch.inference_mode(False)  # what is kept between decodings must be writable in any mode
    @torch.no_grad()
    def step(self, work: Pass, number: int) -> Step:
        """One pass of the paper's loop (`Pass`: forward, observe, select, commit), as it is or from a recording."""
        plan = self.plan(number)
        with on_device(self.model.device):
            outcome = self.outcome(work, plan)
        # Made before the host waits for the device: what follows the wait keeps the device waiting.
        step = Step(
            self.index,
            plan.window,
            outcome.active,
            outcome.commit,
            outcome.token,
            outcome.confidence,
            outcome.tail,
            outcome.edges,
            outcome.state.canvas,
        )
        self.check(outcome, number)
        self.state, self.index, self.block_step = outcome.state, self.index + 1, self.block_step + 1
        return step

    def outcome(self, work: Pass, plan: Plan) -> Outcome:
        if self.replays is None:
            return work(self.state, plan, partial(self.drawn, plan))
        return self.replays.run(work, self.state, plan, self.drawn(plan).noise)

    def drawn(self, plan: Plan, vocab: int = 0) -> Drawn:
        """The random numbers of a pass: for the tokens, where there is a temperature, then for the strategy."""
        if self.options.sampling.temperature == 0 and not self.needs.draws:
            return Drawn(None, None)
        draw, wanted = self.draws.uniform, [bool(row[plan.number]) for row in self.left]
        uniform = draw(plan.window, wanted, vocab) if self.options.sampling.temperature > 0 else None
        return Drawn(uniform, draw(plan.window, wanted) if self.needs.draws else None)

    def plan(self, number: int) -> Plan:
        """The columns to compute and to predict; passes of one kind have one plan."""
        settled, fresh = self.options.reuse is Reuse.SETTLED, self.options.is_fresh(self.block_step)
        most = -(-max(1, *self.due) // COLUMN_BUCKET) * COLUMN_BUCKET if settled and not fresh else 0
        kind = (number, self.block_step == 0, fresh, most)
        if kind not in self.plans:
            self.plans[kind] = self._plan(*kind)
        return self.plans[kind]

    def _plan(self, number: int, first: bool, fresh: bool, most: int) -> Plan:
        block = self.blocks[number]
        span = self.options.reuse.span(block, self.length, fresh=fresh)
        # Later passes of the block compute the block alone and have no row that predicts its first position.
        by_slice = self.options.reuse in (Reuse.PREFIX, Reuse.DUAL)
        only_first = first and by_slice and self.model.lookback > 0
        return Plan(number, block, self.window(block), span, min(most, self.length), only_first)

    def window(self, block: slice) -> slice:
        """The columns the strategy sees; with reuse, where only the block is computed anew, never more than that."""
        match self.needs.sees:
            case "region" if self.options.reuse in (Reuse.NONE, Reuse.SETTLED):
                return slice(self.blocks[0].start, self.length)
            case "canvas":
                return slice(0, self.length)
            case _:
                return block

    def check(self, outcome: Outcome, number: int) -> None:
        """The one transfer of a step: the contract, the numbers, and how many masks each row has left in each block."""
        n_blocks = len(self.blocks)
        for row, (committed, illegal, not_finite, *rest) in enumerate(outcome.report.tolist()):
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
            self.left[row], self.due[row] = rest[:n_blocks], sum(rest[n_blocks:])

    def borrow(self, shape: Hashable) -> KVCache | None:
        """The keys and values to reuse, if any are."""
        if self.options.reuse is Reuse.NONE:
            return None
        return KVCache() if self.replays is None else self.replays.borrow(shape)

    def _check_arguments(self, canvas: Canvas) -> None:
        model, n_blocks = self.model, len(self.blocks)
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


__all__ = ["Options", "Reuse", "Step", "decode"]
