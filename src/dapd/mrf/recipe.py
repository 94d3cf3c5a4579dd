"""The recipe of a stack of toy models: the values that the paper states, and a field for each that it leaves open."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from dapd.errors import DapdError
from dapd.mrf.data import LENGTH
from dapd.mrf.network import Positions, Shape


class Schedule(StrEnum):
    """The learning rate after the warm-up."""

    CONSTANT = "constant"
    COSINE = "cosine"
    """Half a cosine that falls to zero over all steps after the warm-up."""
    TAIL = "tail"
    """Constant, then in a straight line to zero over the last `Recipe.tail` of the steps."""


class Masks(StrEnum):
    """How masks are drawn. All three estimate the same loss; they differ in the noise of its gradient."""

    RATIO = "ratio"
    """LLaDA's way: a ratio t for each sequence, then each token with probability t; weight 1/t."""
    EVEN = "even"
    """The number of masks is drawn, not t (LLaDA's second form), spread evenly over the batch as RADD spreads t."""
    MIDDLE = "middle"
    """Like `EVEN`, with numbers around four drawn more often and weighted less. At these numbers the long chains of the
    toy occur, in which a value follows from others three or four constraints away: they are rare and learnt last."""

    @property
    def shares(self) -> tuple[float, ...] | None:
        """Probabilities of drawing 1, 2, ..., 9 masks; None where a ratio is drawn instead."""
        match self:
            case Masks.RATIO:
                return None
            case Masks.EVEN:
                return (1 / LENGTH,) * LENGTH
            case Masks.MIDDLE:
                return (0.04, 0.07, 0.16, 0.24, 0.18, 0.12, 0.08, 0.06, 0.05)


@dataclass(frozen=True)
class Variant:
    """The settings that may differ between two models of one stack."""

    seed: int = 0
    """Draws the initial weights and the data set."""
    dataset_size: int = 0
    """Sequences in the model's own data set; 0 draws fresh ones at every step."""
    dropout: float = 0.0
    """Dropout probability after attention and after the feed-forward; RADD's presets have 0.02."""
    weight_decay: float = 0.01
    """AdamW's weight decay; 0.01 is torch's default, 0 is RADD's."""
    norm_bias: float = 1.0
    """Initial bias of the layer norms: 1 in RADD's code, 0 everywhere else."""

    def __post_init__(self) -> None:
        if not 0 <= self.dropout < 1:
            raise DapdError(f"dropout is {self.dropout}; it must be at least 0 and below 1")
        if self.dataset_size < 0 or self.weight_decay < 0:
            raise DapdError("dataset_size and weight_decay must not be negative")


@dataclass(frozen=True)
class Recipe:
    """One training job: the settings that its models share, and one `Variant` for each of them."""

    shape: Shape = field(default_factory=Shape)
    """Shape of the network."""
    batch: int = 128
    """Sequences per step and model."""
    steps: int = 20_000
    """Gradient steps (the paper's number)."""
    rate: float = 1e-3
    """AdamW's learning rate (the paper's number)."""
    schedule: Schedule = Schedule.COSINE
    """Course of the learning rate after the warm-up."""
    warmup: int = 500
    """Steps during which the rate rises from zero."""
    tail: float = 0.3
    """Share of the steps over which `Schedule.TAIL` falls."""
    masks: Masks = Masks.RATIO
    """How the masks of a training sequence are drawn."""
    clip: float = 1.0
    """Largest norm of one model's gradient; 0 leaves it alone."""
    ema: float = 0.999
    """Decay of the running mean of the weights, which is saved as the result; 0 saves the last weights."""
    variants: tuple[Variant, ...] = (Variant(),)
    """The variants of the models that are trained side by side, one for each model."""

    def __post_init__(self) -> None:
        if self.batch < 1 or self.steps < 1 or not self.variants:
            raise DapdError("batch, steps and the number of models must be at least 1")
        if not 0 <= self.ema < 1:
            raise DapdError(f"ema is {self.ema}; it must be at least 0 and below 1")
        if self.rate <= 0 or self.warmup < 0 or self.clip < 0:
            raise DapdError("rate must be above 0; warmup and clip must not be negative")
        if not 0 < self.tail <= 1:
            raise DapdError(f"tail is {self.tail}; it must be above 0 and at most 1")

    @property
    def n_models(self) -> int:
        return len(self.variants)

    def options(self) -> dict[str, Any]:
        """The values of the recipe, keyed by the options of `dapd mrf train`. There the models differ in the seed
        alone, so that the first variant stands for all."""
        parts = {**vars(self), **vars(self.shape), **vars(self.variants[0]), "models": self.n_models}
        return {name.removeprefix("n_"): value for name, value in parts.items() if name not in ("shape", "variants")}

    def rate_at(self, step: int) -> float:
        """The learning rate of step 0, 1, ..."""
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        if self.schedule is Schedule.CONSTANT:
            return self.rate
        if self.schedule is Schedule.TAIL:
            return self.rate * min(1.0, (self.steps - step) / (self.tail * self.steps))
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.rate * 0.5 * (1 + math.cos(math.pi * done))

    def ema_at(self, step: int) -> float:
        """The decay of the running mean at a step, by RADD's ramp: a young mean forgets its random start faster."""
        return min(self.ema, (1 + step) / (10 + step))


def replicate(variant: Variant, n_models: int) -> tuple[Variant, ...]:
    """The same variant with seeds counted up from its own."""
    return tuple(dataclasses.replace(variant, seed=variant.seed + m) for m in range(n_models))


def chosen(n_models: int = 30, steps: int = 20_000) -> Recipe:
    """The recipe that docs/toy.md reports on: no warm-up, layer norms that start without bias, and every choice that
    helps convergence."""
    variants = replicate(Variant(norm_bias=0.0), n_models)
    return Recipe(batch=256, steps=steps, schedule=Schedule.TAIL, warmup=0, masks=Masks.MIDDLE, variants=variants)


def to_json(recipe: Recipe) -> dict[str, Any]:
    return json.loads(json.dumps(dataclasses.asdict(recipe)))  # type: ignore[no-any-return]


def from_json(values: dict[str, Any]) -> Recipe:
    """The recipe that `to_json` wrote; an unknown or missing field is an error."""
    try:
        expected = {f.name for f in dataclasses.fields(Recipe)}
        if set(values) != expected:
            raise TypeError(f"its fields should be {', '.join(sorted(expected))}, not {', '.join(sorted(values))}")
        variants = tuple(Variant(**variant) for variant in values["variants"])
        shape = values["shape"]
        parts = {
            "shape": Shape(**{**shape, "positions": Positions(shape["positions"])}),
            "schedule": Schedule(values["schedule"]),
            "masks": Masks(values["masks"]),
            "variants": variants,
        }
        return Recipe(**{**values, **parts})
    except (KeyError, TypeError, ValueError) as error:
        raise DapdError(f"this is not a toy recipe: {error}") from error
