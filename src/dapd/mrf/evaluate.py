"""The numbers of a trained stack: convergence, and the paper's measures by step and by layer selection."""

from __future__ import annotations

from dataclasses import dataclass

from dapd.mrf.data import valid
from dapd.mrf.exact import judge
from dapd.mrf.metrics import SELECTIONS, Row, average, layer_mean, measure_steps
from dapd.mrf.network import StackedRADD
from dapd.mrf.paths import Paths, sample_paths, sample_sequences


@dataclass(frozen=True)
class Budget:
    """How much is sampled."""

    n_paths: int = 100
    """Sampling paths per model that are measured (the paper's number)."""
    n_samples: int = 1000
    """Sequences per model whose constraints are checked, where they are not judged exactly."""
    seed: int = 0
    """Seed of the decoding orders and of the sampled tokens."""
    exact: bool = False
    """Compute validity and loss exactly, over every context, instead of by samples: seconds on a GPU, 20 s per model on
    a CPU core."""


@dataclass(frozen=True)
class Selected:
    """The measures of one layer selection."""

    steps: list[Row]
    overall: Row


@dataclass(frozen=True)
class Evaluation:
    """The measures of a stack of models."""

    n_models: int
    valid: float
    """Share of step-by-step samples that satisfy all four constraints, mean over the models."""
    valid_worst: float
    """Share of valid samples of the worst model."""
    valid_by_model: list[float]
    loss_by_model: list[float] | None
    """LLaDA's loss per token over all contexts; None unless the budget is exact."""
    selections: dict[str, Selected]


def measure_selection(paths: Paths, selection: str, row_max: bool = False) -> Selected:
    steps = measure_steps(layer_mean(paths, selection), paths.masked, row_max)
    return Selected(steps, average(steps))


def usable_selections(n_layers: int) -> list[str]:
    """The paper's selections that a network of this depth has."""
    return [name for name in SELECTIONS if name == "all" or int(name.split()[1]) <= n_layers]


def evaluate(network: StackedRADD, budget: Budget, paths: Paths | None = None) -> Evaluation:
    """Sample from a stack and measure it. Where `paths` are given, they are measured instead of new ones."""
    if budget.exact:
        verdict = judge(network)
        by_model = verdict.valid
        losses = verdict.loss
    else:
        sampled = sample_sequences(network, budget.n_samples, budget.seed + 1)
        by_model = valid(sampled).float().mean(1).tolist()
        losses = None
    paths = paths or sample_paths(network, budget.n_paths, budget.seed)
    selections = {name: measure_selection(paths, name) for name in usable_selections(network.shape.n_layers)}
    return Evaluation(network.n_models, sum(by_model) / len(by_model), min(by_model), by_model, losses, selections)
