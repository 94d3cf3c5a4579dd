"""A sweep over what the paper leaves open: several configurations, stacked wherever their shapes allow it."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dapd.errors import DapdError
from dapd.io.files import make_folder, write_text
from dapd.mrf import storage
from dapd.mrf.evaluate import Budget, evaluate
from dapd.mrf.network import Positions, Shape, StackedRADD
from dapd.mrf.recipe import Masks, Recipe, Schedule, Variant, chosen, replicate, to_json
from dapd.mrf.train import Execution, Progress, Trainer, run_steps

PLAIN = Variant(norm_bias=0.0)
CELLS = {
    "plain": PLAIN,
    "radd": Variant(),
    "no-decay": replace(PLAIN, weight_decay=0.0),
    "decay": replace(PLAIN, weight_decay=0.1),
    "dropout": replace(PLAIN, dropout=0.1),
    "data-1000": replace(PLAIN, dataset_size=1000),
}
"""Named variants: `plain` is the reported one, `radd` has the initial weights of RADD's code."""


@dataclass(frozen=True)
class Stack:
    """Configurations of one shape and schedule, trained as one job."""

    name: str
    recipe: Recipe
    """The common recipe, to which the cells add their variants."""
    cells: tuple[str, ...]
    """The configurations that are trained, by their names in `CELLS`."""
    n_models: int
    """How many models each cell trains."""

    def models_of(self, cell: str) -> slice:
        first = self.cells.index(cell) * self.n_models
        return slice(first, first + self.n_models)

    def full_recipe(self, steps: int) -> Recipe:
        variants = tuple(v for cell in self.cells for v in replicate(CELLS[cell], self.n_models))
        return replace(self.recipe, variants=variants, steps=steps, warmup=min(self.recipe.warmup, steps // 8))


ONE, BOTH = ("plain",), ("radd", "plain")
BASE = replace(chosen(1), batch=128)
"""The recipe that docs/toy.md reports on, at half its batch size."""
SMALL = BASE.shape
SINCOS = replace(SMALL, positions=Positions.SINCOS)
RATIO = replace(BASE, masks=Masks.RATIO)
COSINE = replace(RATIO, schedule=Schedule.COSINE, warmup=500)
STACKS = (
    Stack("w64-h4", BASE, ("plain", "radd", "no-decay", "decay", "dropout", "data-1000"), 3),
    Stack("w128-h8", replace(BASE, shape=Shape(width=128, n_heads=8)), ONE, 4),
    Stack("w64-h4-learned", replace(BASE, shape=replace(SMALL, positions=Positions.LEARNED)), ONE, 4),
    Stack("w64-h4-batch512", replace(BASE, batch=512), ONE, 3),
    Stack("w256-h8", replace(BASE, shape=Shape(width=256, n_heads=8)), ONE, 2),
    Stack("w768-h12", replace(BASE, shape=Shape(width=768, n_heads=12)), ONE, 1),
    Stack("w64-h4-constant", replace(RATIO, schedule=Schedule.CONSTANT), BOTH, 4),
    Stack("w64-h4-cosine", COSINE, BOTH, 4),
    Stack("w128-h2-cosine", replace(COSINE, shape=Shape(width=128, n_heads=2)), BOTH, 4),
    Stack("w64-h4-sincos-cosine", replace(COSINE, shape=SINCOS), BOTH, 4),
    Stack("w64-h4-dit-cosine", replace(COSINE, shape=replace(SINCOS, gated=True)), BOTH, 4),
)
"""The stacks of the sweep, the cheapest and most telling first; those that do not fit into the time are left out."""

RESERVE_SECONDS = 10
"""Seconds kept for evaluating the last stack."""


@dataclass(frozen=True)
class SweepOptions:
    """What to sweep and for how long."""

    steps: int = 20_000
    """Gradient steps of every configuration."""
    minutes: float = 9.0
    """Time for the whole sweep. The training of a stack is broken off once it is clear that it would end later."""
    only: tuple[str, ...] = ()
    """Names of stacks; all of them when empty."""
    keep: tuple[str, ...] = ()
    """Names of the stacks whose weights are written."""
    models: int = 0
    """Models per configuration; 0 leaves each stack its own number."""
    budget: Budget = dataclasses.field(default_factory=Budget)

    def __post_init__(self) -> None:
        least = RESERVE_SECONDS / 60
        if not self.minutes > least:
            raise DapdError(f"minutes is {self.minutes:g}; nothing finishes in that time: it must be above {least:.2g}")
        if self.steps < 1 or self.models < 0:
            raise DapdError(f"steps is {self.steps} and models {self.models}; they must be at least 1 and 0")
        names = {stack.name for stack in STACKS}
        for name in (*self.only, *self.keep):
            if name not in names:
                raise DapdError(f"there is no stack {name!r} in the sweep; there are {', '.join(sorted(names))}")

    def stacks(self) -> list[Stack]:
        chosen = [stack for stack in STACKS if not self.only or stack.name in self.only]
        return [replace(s, n_models=self.models) if self.models else s for s in chosen]


@dataclass(frozen=True)
class SweepProgress:
    """Progress of the sweep: that of a training, or a finished stack's summary."""

    stack: str
    training: Progress | None = None
    note: str = ""
    result: dict[str, Any] | None = None


def sweep(options: SweepOptions, folder: Path, execution: Execution) -> Iterator[SweepProgress]:
    """Train and evaluate stack after stack; `summary.json` is rewritten after each one."""
    make_folder(folder)
    deadline = time.monotonic() + 60 * options.minutes - RESERVE_SECONDS
    results: dict[str, Any] = {}
    torch.set_float32_matmul_precision("high" if execution.tf32 else "highest")
    for stack in options.stacks():
        recipe = stack.full_recipe(options.steps)
        began = time.monotonic()
        trainer = Trainer(recipe, execution)
        reached = Progress(0, recipe.steps, float("nan"), float("nan"), 0.0, 0.0, trainer.mode)
        fits = True
        for reached in run_steps(trainer):
            yield SweepProgress(stack.name, training=reached)
            fits = reached.step < execution.report_every or time.monotonic() + reached.seconds_left < deadline
            if not fits:
                break
        if fits:
            seconds = time.monotonic() - began
            result = {"recipe": to_json(recipe), "seconds": seconds, "mode": reached.mode, "loss": reached.loss}
            result["cells"] = evaluate_cells(stack, trainer, options.budget)
            if stack.name in options.keep:
                keep_weights(folder / stack.name, trainer)
        else:
            result = {
                "recipe": to_json(recipe),
                "skipped": f"{reached.seconds_left:.0f} s of training were left when the time was up",
            }
        results[stack.name] = result
        summary = {
            "hardware": storage.hardware(execution.device),
            "execution": dataclasses.asdict(execution),
            "stacks": results,
        }
        write_text(folder / "summary.json", json.dumps(summary, indent=1) + "\n")
        yield SweepProgress(stack.name, note=str(result.get("skipped", "")), result=result)
        del trainer


def evaluate_cells(stack: Stack, trainer: Trainer, budget: Budget) -> dict[str, Any]:
    """Evaluate each configuration with the running mean of its weights and with its last weights."""
    cells: dict[str, Any] = {}
    for mean in (True, False):
        network = StackedRADD(trainer.recipe.n_models, trainer.recipe.shape).to(trainer.rate.device)
        network.load_state_dict(trainer.weights(mean))
        for cell in stack.cells:
            part = network.pick(stack.models_of(cell))
            cells[f"{cell}{'' if mean else ', last weights'}"] = dataclasses.asdict(evaluate(part, budget))
    return cells


def keep_weights(folder: Path, trainer: Trainer) -> None:
    make_folder(folder)
    write_text(folder / "recipe.json", json.dumps(to_json(trainer.recipe), indent=1) + "\n")
    storage.save_weights(folder, trainer.weights(mean=trainer.recipe.ema > 0), torch.float16)
