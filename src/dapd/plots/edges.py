"""How edge scores are distributed while a model decodes step by step, which is what the choice of tau_min rests on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from dapd.decoding import Step
from dapd.errors import DapdError
from dapd.evaluation.edge_scores import BINS, LOWEST, EdgeCounter
from dapd.generation import DiffusionLM
from dapd.plots.axes import log_axis
from dapd.plots.figure import AS_IT_COMES, WIDE, Grid, Layout, plain, sheet

STAGES = ("first third", "second third", "last third")
SHADES = ("#7ad151", "#22a884", "#414487")


@dataclass(frozen=True)
class Scores:
    """Counts of scores in even bins of their logarithm, for each third of the decoding."""

    counts: Float[Tensor, "stages bins"]
    below: dict[float, int]
    """Number of scores below each tau that was asked for."""

    @property
    def n(self) -> int:
        return int(self.counts.sum())

    @property
    def edges(self) -> list[float]:
        return [10 ** (LOWEST - LOWEST * i / BINS) for i in range(BINS + 1)]


def collect(
    model: DiffusionLM,
    prompts: Sequence[Any],
    *,
    n_new: int,
    taus: Sequence[float],
    layers: float = 0.3,
    on_step: Callable[[Step], None] | None = None,
) -> Scores:
    """Decode each prompt step by step and count the scores of all pairs of masks at every step."""
    if not prompts:
        raise DapdError("there is no prompt to decode; give --prompt or --task")
    counter = EdgeCounter(taus, layers)
    for prompt in prompts:
        model.generate(prompt, strategy=counter, max_new_tokens=n_new, on_step=on_step)
    return Scores(counter.counts.double(), dict(zip(taus, counter.below.tolist(), strict=True)))


def edges(
    scores: Scores,
    path: Path | None = None,
    name: str = "",
    *,
    layout: Layout = AS_IT_COMES,
    axes: Sequence[Any] | None = None,
) -> None:
    """The histogram on a logarithmic axis, with the taus and the share of pairs under them: one panel."""
    if not scores.n:
        raise DapdError("no pairs of masks were seen; decode more than one new token")
    share = 100 * scores.counts / scores.n
    with sheet(path, Grid(1, 1, (WIDE, 3.1)), axes, layout) as drawing:
        [axis] = drawing.axes
        axis.hist(
            [scores.edges[:-1]] * len(STAGES),
            bins=scores.edges,
            weights=[row.tolist() for row in share],
            stacked=True,
            color=SHADES,
            label=[f"{stage} of decoding" for stage in STAGES],
        )
        for (tau, below), dash in zip(sorted(scores.below.items()), cycle(("-", "--", ":", "-.")), strict=False):
            words = f"τ = {tau:g}: {100 * below / scores.n:.1f}% below"
            axis.axvline(tau, color="#D55E00", lw=1.3, ls=dash, label=words)
        axis.set_ylim(0, 1.05 * float(share.sum(0).max()))
        filled = share.sum(0).nonzero().flatten()
        log_axis(axis, min([scores.edges[int(filled[0])], *scores.below]), 1.0)
        axis.set_xlim(right=1)
        axis.set_xlabel("edge score of two masks (share of the largest in its row)")
        axis.set_ylabel("pairs of masks (%)")
        axis.set_title(plain(f"{name}{': ' if name else ''}{scores.n:,} scores"))
        drawing.legend()
