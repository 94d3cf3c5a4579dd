"""How edge scores are distributed while a model decodes step by step: what tau_min is chosen by."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dapd.errors import DapdError
from dapd.generation import DiffusionLM
from dapd.graph import edge_scores, normalise
from dapd.plots.figure import WIDE, check_suffix, pyplot, save
from dapd.strategies import AttentionNeed, Observation, Selection, Strategy
from dapd.strategies.base import top

BINS, LOWEST = 60, -5
"""Bins of the logarithmic histogram, and its smallest power of ten; smaller scores count in the first bin."""
STAGES = ((0.0, 1 / 3, "first third"), (1 / 3, 2 / 3, "second third"), (2 / 3, 1.01, "last third"))
SHADES = ("#7ad151", "#22a884", "#414487")


@dataclass(frozen=True)
class StepByStep(Strategy):
    """The surest token a pass, while `keep` gets the unmasked fraction and the normalised mask-to-mask scores."""

    keep: Callable[[float, Float[Tensor, " pairs"]], None]
    layers: float | tuple[int, ...] = 0.3

    @property
    def attention(self) -> AttentionNeed:
        return AttentionNeed(self.layers)

    def select(self, seen: Observation, memory: object = None, /) -> Selection:
        assert seen.attention is not None
        scores = normalise(edge_scores(seen.attention.float(), seen.masked), "row_max")
        itself = torch.eye(scores.shape[-1], dtype=torch.bool, device=scores.device)
        pairs = seen.masked[:, :, None] & seen.masked[:, None, :] & ~itself
        # A row's largest score is 1 by the normalisation; one row at a time, as rows may be of different progress.
        for row in range(len(scores)):
            self.keep(float(seen.progress.unmasked[row]), scores[row][pairs[row]])
        return Selection(top(seen.confidence, seen.masked, 1))


@dataclass
class Scores:
    """Counts of scores in even bins of their logarithm, for each third of the decoding."""

    counts: Tensor
    below: dict[float, int]
    """Scores under each tau that was asked for."""
    n: int = 0

    @property
    def edges(self) -> list[float]:
        return [10 ** (LOWEST - LOWEST * i / BINS) for i in range(BINS + 1)]

    def add(self, progress: float, scores: Float[Tensor, " pairs"]) -> None:
        stage = next(i for i, (low, high, _) in enumerate(STAGES) if low <= progress < high)
        logs = scores.double().clamp_min(10**LOWEST).log10().cpu()
        self.counts[stage] += torch.histc(logs, bins=BINS, min=LOWEST, max=0)
        self.n += len(scores)
        for tau in self.below:
            self.below[tau] += int((scores < tau).sum())


def collect(
    model: DiffusionLM, prompts: Sequence[Any], *, n_new: int, taus: Sequence[float], layers: float = 0.3
) -> Scores:
    """Decode each prompt step by step and count the scores of all pairs of masks at every step."""
    if not prompts:
        raise DapdError("there is no prompt to decode; give --prompt or --task")
    found = Scores(torch.zeros(len(STAGES), BINS, dtype=torch.float64), dict.fromkeys(taus, 0))
    for prompt in prompts:
        model.generate(prompt, strategy=StepByStep(found.add, layers), max_new_tokens=n_new)
    return found


def edges(found: Scores, path: Path, name: str = "") -> None:
    """The histogram on a logarithmic axis, with the taus and the share of pairs under them."""
    check_suffix(path)
    if not found.n:
        raise DapdError("no pairs of masks were seen; decode more than one new token")
    plt = pyplot()
    figure, axis = plt.subplots(figsize=(WIDE, 2.7))
    share = 100 * found.counts / found.n
    axis.hist(
        [found.edges[:-1]] * len(STAGES),
        bins=found.edges,
        weights=[row.tolist() for row in share],
        stacked=True,
        color=SHADES,
        label=[f"{stage} of decoding" for _, _, stage in STAGES],
    )
    for (tau, below), dash in zip(sorted(found.below.items()), cycle(("-", "--", ":", "-.")), strict=False):
        said = f"τ = {tau:g}: {100 * below / found.n:.1f}% below"
        axis.axvline(tau, color="#D55E00", lw=1.3, ls=dash, label=said)
    axis.set_ylim(0, 1.05 * float(share.sum(0).max()))
    axis.set_xscale("log")
    seen = share.sum(0).nonzero().flatten()
    axis.set_xlim(10 ** math.floor(LOWEST - LOWEST * int(seen[0]) / BINS), 1)
    axis.set_xlabel("edge score between two masks (divided by the row's largest)")
    axis.set_ylabel("pairs (%)")
    axis.set_title(f"{name}{': ' if name else ''}{found.n:,} scores")
    figure.legend(loc="outside right center")
    save(figure, path)
