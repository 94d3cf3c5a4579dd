"""Training a stack of toy models side by side: LLaDA's loss, AdamW, one captured graph per step on a GPU."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dapd.errors import DapdError, first_line
from dapd.io.files import alone_in, replacing
from dapd.kernels.cuda_graph import capture
from dapd.mrf import storage
from dapd.mrf.data import LENGTH, MASK_ID, N_FREE, N_VALUES, all_sequences, draw_sequences
from dapd.mrf.network import StackedRADD, initialise, transformer_block
from dapd.mrf.recipe import Masks, Recipe, to_json

EPSILON = 1e-3
"""Smallest masking probability, as in LLaDA."""
LOSS_FLOOR = N_FREE * math.log(N_VALUES) / LENGTH
"""The loss of a perfect model: the entropy of a sequence, per token."""

EAGER_STEPS = 3
"""Steps before one is recorded as a CUDA graph."""


@dataclass(frozen=True)
class Progress:
    """The progress of a run; `loss` is the mean over the models and over the steps since the last report."""

    step: int
    steps: int
    loss: float
    worst_loss: float
    """Loss of the worst model."""
    steps_per_second: float
    seconds_left: float
    mode: str
    """How steps are run: eager, compiled or captured; where an attempt to speed them up failed, also the reason."""


@dataclass(frozen=True)
class Execution:
    """How training is executed. Nothing here is part of the recipe."""

    device: str = "cpu"
    """The torch device that trains, by name."""
    compile: bool = False
    """Fuse the block with torch.compile; falls back to plain kernels where that fails."""
    tf32: bool = False
    """Let matrix products round their inputs to ten bits."""
    checkpoint_every: int = 1000
    """Steps between checkpoints; also the steps after which the random stream is seeded afresh."""
    report_every: int = 100
    """Steps between two progress reports."""
    half: bool = False
    """Store the finished weights in 16 bits."""

    def __post_init__(self) -> None:
        if self.checkpoint_every < 1 or self.report_every < 1:
            raise DapdError("checkpoint_every and report_every must be at least 1")
        if self.device.startswith("cuda") and not torch.cuda.is_available():
            raise DapdError("there is no GPU that torch can use: choose --device cpu")


def masked_loss(
    logits: Float[Tensor, "m b n v"],
    tokens: Int[Tensor, "m b n"],
    masked: Bool[Tensor, "m b n"],
    p: Float[Tensor, "m b 1"],
) -> Float[Tensor, " m"]:
    """LLaDA's loss for each model: cross entropy of the masked tokens, weighted by 1/p, per token of the batch. `p` is
    the masking ratio; where the number k of masks was drawn instead, k times the chance of that number."""
    surprise = F.cross_entropy(logits.flatten(0, 2), tokens.flatten(), reduction="none").view(tokens.shape)
    return (surprise * masked / p).mean((1, 2))


class Trainer:
    """The state of a training job: a network, its optimiser, the running mean of its weights."""

    def __init__(self, recipe: Recipe, execution: Execution) -> None:
        self.recipe = recipe
        self.execution = execution
        device = torch.device(execution.device)
        variants = recipe.variants
        self.network = StackedRADD(recipe.n_models, recipe.shape)
        initialise(self.network, [v.seed for v in variants], [v.norm_bias for v in variants])
        self.network.to(device)
        self.parameters = list(self.network.parameters())
        self.mean = [p.detach().clone() for p in self.parameters]
        self.rate = torch.tensor(0.0, device=device)
        self.ema_weight = torch.tensor(0.0, device=device)
        # AdamW works element by element, so one optimiser serves all models. `update` applies the decay of each model.
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=self.rate, weight_decay=0.0, fused=True, capturable=device.type == "cuda"
        )
        self.decay = torch.tensor([v.weight_decay for v in variants], device=device)
        self.dropout = (
            torch.tensor([v.dropout for v in variants], device=device) if any(v.dropout for v in variants) else None
        )
        tables = [draw_sequences(v.dataset_size, v.seed) if v.dataset_size else all_sequences() for v in variants]
        self.table_sizes = torch.tensor([len(table) for table in tables], device=device)
        self.table_starts = self.table_sizes.cumsum(0) - self.table_sizes
        self.table = torch.cat(tables).to(device)
        shares = torch.tensor(recipe.masks.shares or (1 / LENGTH,) * LENGTH, device=device)
        self.shares = shares
        self.share_ends = shares.cumsum(0)[:-1]
        self.loss_sum = torch.zeros(recipe.n_models, device=device)
        self.step = 0
        self.mode = "eager"
        self.eager_steps = 0
        self.replay: Callable[[], None] | None = None
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        if execution.compile:
            self.compile()

    def compile(self) -> None:
        """Fuse the block, trying it out once: a machine without a compiler trains with plain kernels and says so."""
        torch._dynamo.reset()  # torch stops compiling a function that it has met in too many shapes
        self.network.run_block = torch.compile(transformer_block, dynamic=False)
        try:
            with torch.random.fork_rng():
                self.network(self.draw(), dropout=self.dropout).logits.sum().backward()
            self.mode = "compiled"
        except Exception as error:  # torch.compile fails in many ways; each of them means the same here
            self.network.run_block = transformer_block
            self.mode = f"eager (torch.compile failed: {type(error).__name__})"
        self.optimizer.zero_grad(set_to_none=True)

    def draw(self) -> Int[Tensor, "m b n"]:
        """A batch for each model out of its own data set."""
        shape = (self.recipe.n_models, self.recipe.batch)
        pick = (torch.rand(shape, device=self.table.device, dtype=torch.float64) * self.table_sizes[:, None]).long()
        return self.table[pick + self.table_starts[:, None]]

    def draw_masks(self, shape: torch.Size) -> tuple[Bool[Tensor, "m b n"], Float[Tensor, "m b 1"]]:
        """Draw which tokens are masked, and the number that the cross entropy of each sequence is divided by."""
        t = torch.rand(*shape[:2], 1, device=self.table.device)
        uniform = torch.rand(shape, device=self.table.device)
        if self.recipe.masks is Masks.RATIO:
            p = (1 - EPSILON) * t + EPSILON
            return uniform < p, p
        t = (torch.arange(shape[1], device=t.device)[:, None] + t) / shape[1]
        number = (t >= self.share_ends).sum(-1, keepdim=True)
        # Ranks by comparison: a sort of nine costs more than 81 comparisons.
        rank = (uniform.unsqueeze(-1) > uniform.unsqueeze(-2)).sum(-1)
        return rank <= number, (number + 1) * self.shares[number]

    def one_step(self) -> None:
        tokens = self.draw()
        masked, p = self.draw_masks(tokens.shape)
        logits = self.network(torch.where(masked, MASK_ID, tokens), dropout=self.dropout).logits
        loss = masked_loss(logits, tokens, masked, p)
        loss.sum().backward()  # type: ignore[no-untyped-call]
        self.update()
        self.loss_sum += loss.detach()

    @torch.no_grad()
    def update(self) -> None:
        """Clip each model's gradient by its own norm, decay, step, and move the running mean."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        if self.recipe.clip:
            norm = torch.stack([g.flatten(1).square().sum(1) for g in gradients]).sum(0).sqrt()
            scale = self.recipe.clip / norm.clamp_min(self.recipe.clip)
            for g in gradients:
                g.mul_(scale.view(-1, *[1] * (g.dim() - 1)))
        keep = 1 - self.rate * self.decay
        for p in self.parameters:
            p.mul_(keep.view(-1, *[1] * (p.dim() - 1)))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.recipe.ema:
            for mean, p in zip(self.mean, self.parameters, strict=True):
                mean.lerp_(p, self.ema_weight)

    def advance(self, n: int) -> None:
        """Run the next `n` steps."""
        for _ in range(n):
            self.rate.fill_(self.recipe.rate_at(self.step))
            self.ema_weight.fill_(1 - self.recipe.ema_at(self.step))
            if self.stream is None:
                self.one_step()
            elif self.replay is not None:
                self.replay()
            else:
                self.step_before_capture(self.stream)
            self.step += 1

    def step_before_capture(self, stream: torch.cuda.Stream) -> None:
        """Run an eager step. A few of these make the optimiser's state; then one step is recorded as a graph, which
        later steps replay.

        All of this is on a side stream: autograd remembers the stream it first ran on, and the default one cannot be
        recorded.
        """
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.one_step()
        torch.cuda.current_stream().wait_stream(stream)
        self.eager_steps += 1
        if self.eager_steps == EAGER_STEPS:
            try:
                # The steps so far were its warm-up.
                self.replay = capture(self.one_step, stream=stream, warmups=0)
                self.mode += ", captured"
            except RuntimeError as error:
                self.optimizer.zero_grad(set_to_none=True)
                self.mode += f", not captured: {first_line(error)}"

    def seed(self) -> None:
        """Seed the random stream of the steps up to the next checkpoint: a resumed run needs no saved generator."""
        torch.manual_seed(self.recipe.variants[0].seed * 1_000_003 + self.step)

    def state(self) -> dict[str, Any]:
        moments = [self.optimizer.state[p] for p in self.parameters]
        return {
            "step": self.step,
            "parameters": [p.detach() for p in self.parameters],
            "mean": self.mean,
            "first": [m["exp_avg"] for m in moments],
            "second": [m["exp_avg_sq"] for m in moments],
        }

    @torch.no_grad()
    def restore(self, state: dict[str, Any]) -> None:
        self.step = state["step"]
        for target, source in zip([*self.parameters, *self.mean], [*state["parameters"], *state["mean"]], strict=True):
            target.copy_(source)
        for p, first, second in zip(self.parameters, state["first"], state["second"], strict=True):
            at = torch.tensor(float(self.step), device=p.device)
            self.optimizer.state[p].update(step=at, exp_avg=first.to(p.device), exp_avg_sq=second.to(p.device))

    def weights(self, mean: bool) -> dict[str, Tensor]:
        """The stack's weights by name: the running mean, or the last ones."""
        names = [name for name, _ in self.network.named_parameters()]
        return dict(zip(names, self.mean if mean else [p.detach() for p in self.parameters], strict=True))


def run_steps(trainer: Trainer, checkpoint: Callable[[], None] | None = None) -> Iterator[Progress]:
    """Train to the end and report now and then. The first report comes early, to give an early estimate of the time."""
    execution = trainer.execution
    steps = trainer.recipe.steps
    early = trainer.step + 5
    began = time.monotonic()
    first = trainer.step
    while trainer.step < steps:
        boundary = trainer.step - trainer.step % execution.checkpoint_every
        reports = trainer.step - trainer.step % execution.report_every + execution.report_every
        stops = [steps, boundary + execution.checkpoint_every, reports, *([early] if trainer.step < early else [])]
        n = min(stops) - trainer.step
        if trainer.step == boundary:
            trainer.seed()
        trainer.advance(n)
        losses = (trainer.loss_sum / n).tolist()
        trainer.loss_sum.zero_()
        speed = (trainer.step - first) / (time.monotonic() - began)
        left = (steps - trainer.step) / speed
        yield Progress(trainer.step, steps, sum(losses) / len(losses), max(losses), speed, left, trainer.mode)
        if checkpoint is not None and (trainer.step % execution.checkpoint_every == 0 or trainer.step == steps):
            checkpoint()
        if trainer.step == early:  # compiling and capturing are over: measure the speed from here on
            began = time.monotonic()
            first = trainer.step


def train(recipe: Recipe, folder: Path, execution: Execution) -> Iterator[Progress]:
    """Train into a run directory; a run that was killed goes on from its last checkpoint."""
    storage.open_run(folder, recipe)
    if storage.is_finished(folder):
        return
    with alone_in(folder):
        yield from _train(recipe, folder, execution)


def _train(recipe: Recipe, folder: Path, execution: Execution) -> Iterator[Progress]:
    torch.set_float32_matmul_precision("high" if execution.tf32 else "highest")
    trainer = Trainer(recipe, execution)
    path = folder / storage.CHECKPOINT
    if path.exists():
        trainer.restore(load_checkpoint(path, trainer, execution.device))

    def checkpoint() -> None:
        state = {"recipe": to_json(recipe), "every": execution.checkpoint_every, **trainer.state()}
        with replacing(path) as draft:
            torch.save(state, draft)

    yield from run_steps(trainer, checkpoint)
    dtype = torch.float16 if execution.half else torch.float32
    storage.save_weights(folder, trainer.weights(mean=recipe.ema > 0), dtype)
    path.unlink()


def load_checkpoint(path: Path, trainer: Trainer, device: str) -> dict[str, Any]:
    """Load a state to resume from; one that is damaged, or another run's, is refused."""
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
        here = ([tuple(p.shape) for p in state["parameters"]], state["recipe"])
        complete = {"step", "every", "mean", "first", "second"} <= state.keys()
    except Exception as error:  # torch has no common class for the errors of a damaged file
        raise DapdError(f"{path} is damaged ({first_line(error)}): delete it to train from the start") from None
    if not complete:
        raise DapdError(f"{path} is damaged (parts of it are missing): delete it to train from the start")
    if here != ([tuple(p.shape) for p in trainer.parameters], to_json(trainer.recipe)):
        raise DapdError(f"{path} does not fit the recipe.json in the same folder: delete one of the two")
    if state["every"] != trainer.execution.checkpoint_every:
        raise DapdError(f"{path} was written every {state['every']} steps: resume with the same --checkpoint-every")
    return state
