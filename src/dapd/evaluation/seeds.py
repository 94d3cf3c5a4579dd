"""The same comparison on several models that differ in their seed: means, and intervals over models and prompts.

What holds for one trained model may be an accident of its seed, and what holds on some prompts an accident of those.
Both are resampled: a draw takes models and prompts with replacement, and every chosen model meets every chosen prompt.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dapd.evaluation.compare import Result
from dapd.evaluation.summary import Row

RESAMPLES = 2000


@dataclass(frozen=True)
class Cell:
    """The results of one decoder on one task, for every prompt on every model."""

    task: str
    family: str
    decoder: str
    score: Float[Tensor, "models prompts"]
    nfe: Float[Tensor, "models prompts"]
    tokens: Float[Tensor, "models prompts"]
    seconds: Float[Tensor, "models prompts"]

    def row(self) -> Row:
        """Means over models and prompts, with the 95% interval of the score."""
        low, high = _middle(_resampled(self.score))
        return Row(
            task=self.task,
            family=self.family,
            decoder=self.decoder,
            prompts=self.score.shape[1],
            score=100 * float(self.score.mean()),
            low=100 * low,
            high=100 * high,
            nfe=float(self.nfe.mean()),
            tokens_per_forward=float(self.tokens.sum() / self.nfe.sum()),
            seconds=float(self.seconds.mean()),
        )


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval."""

    value: float
    low: float
    high: float


def cells(models: Sequence[Sequence[Result]]) -> list[Cell]:
    """The results of several models on the same prompts, by task and decoder.

    A decoder that has not decoded every prompt of its task on every model is left out: the prompts that a stopped run
    has finished are those that take few passes, so their means would mislead.
    """
    groups: dict[tuple[str, str], list[dict[int, Result]]] = defaultdict(lambda: [{} for _ in models])
    asked: dict[str, set[int]] = defaultdict(set)
    for number, results in enumerate(models):
        for result in results:
            groups[result.task, result.decoder][number][result.example] = result
            asked[result.task].add(result.example)
    whole = {
        key: by_model for key, by_model in groups.items() if all(done.keys() == asked[key[0]] for done in by_model)
    }
    return [_cell([[done[i] for i in sorted(done)] for done in by_model]) for by_model in whole.values()]


def _cell(results: list[list[Result]]) -> Cell:
    def numbers(name: str) -> Tensor:
        return torch.tensor([[float(getattr(one, name)) for one in of_model] for of_model in results])

    first = results[0][0]
    parts = {name: numbers(name) for name in ("score", "nfe", "tokens", "seconds")}
    return Cell(first.task, first.family, first.decoder, **parts)


def passes_ratio(many: Cell, few: Cell) -> Estimate:
    """How many times the passes of `few` the decoder `many` takes on the same prompts; both are resampled together."""
    low, high = _middle(_resampled(many.nfe) / _resampled(few.nfe))
    return Estimate(float(many.nfe.mean() / few.nfe.mean()), low, high)


def _resampled(values: Float[Tensor, "models prompts"]) -> Float[Tensor, " draws"]:
    """Means of values under models and prompts drawn with replacement; the same draws for values of one shape."""
    generator = torch.Generator().manual_seed(0)
    of_models, of_prompts = (_shares(n, generator) for n in values.shape)
    return ((of_models @ values) * of_prompts).sum(-1)


def _shares(n: int, generator: torch.Generator) -> Float[Tensor, "draws n"]:
    """The share that each of n things has in each draw."""
    drawn = torch.randint(n, (RESAMPLES, n), generator=generator)
    return torch.zeros(RESAMPLES, n).scatter_add_(1, drawn, torch.full((RESAMPLES, n), 1 / n))


def _middle(draws: Float[Tensor, " draws"]) -> tuple[float, float]:
    """The bounds of the middle 95%."""
    low, high = draws.quantile(torch.tensor([0.025, 0.975])).tolist()
    return low, high
