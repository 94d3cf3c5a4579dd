"""The decoders on the toy: how often all four constraints hold, against how many forward passes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dapd.decoding import Options, decode
from dapd.decoding.sampling import Sampling
from dapd.graph import edge_scores
from dapd.mrf.adapter import ToyLM
from dapd.mrf.data import broken_constraints, true_graph
from dapd.strategies import Dapd, EntropyBound, Klass, Needs, Observation, Strategy, Threshold, TopK

Family = Literal[
    "step by step", "top-k", "threshold", "EB", "KLASS", "DAPD Staged", "DAPD Direct", "graph only", "true graph"
]
QUICK = {
    ("step by step", "random order"),
    ("top-k", "k = 3"),
    ("threshold", "0.9"),
    ("EB", "gamma = 0.1"),
    ("KLASS", "0.9, KL 0.01"),
    ("DAPD Staged", "tau 0.3, last 2"),
    ("DAPD Direct", "tau 0.3, last 2"),
    ("true graph", "degree order"),
    ("true graph", "confidence order"),
}
"""The decoders, by family and setting, that a quick report runs."""
LAST_TWO = (-2, -1)
ALL = 1.0


@dataclass(frozen=True)
class TrueGraph(Dapd):
    """DAPD with the edges of the true graph in the place of attention, and no shortcut: the oracle."""

    shortcut: Literal["staged", "direct", "none"] = "none"

    @property
    def needs(self) -> Needs:
        return replace(super().needs, attention=None)

    def scores(self, seen: Observation) -> Float[Tensor, "batch n n"]:
        edge = true_graph().to(seen.masked.device)
        return edge_scores(edge.float().expand(len(seen.masked), -1, -1), seen.masked)


@dataclass(frozen=True)
class Contender:
    """A decoder and what it is called in the table."""

    family: Family
    setting: str
    strategy: Strategy


def contenders() -> list[Contender]:
    """Every decoder of the study, from its cautious settings to its bold ones."""
    entries = [
        Contender("step by step", "confidence order", TopK()),
        Contender("step by step", "random order", TopK(order="random")),
        *(Contender("top-k", f"k = {k}", TopK(k)) for k in (2, 3, 4, 9)),
        *(Contender("threshold", f"{t:g}", Threshold(t)) for t in (0.95, 0.9, 0.7, 0.5, 0.34, 0.3)),
        *(Contender("EB", f"gamma = {g:g}", EntropyBound(g)) for g in (0.01, 0.1, 0.5, 1.2, 2.3, 3.5)),
        *(Contender("KLASS", f"{c:g}, KL {kl:g}", Klass(c, kl)) for c, kl in ((0.9, 0.01), (0.6, 0.015), (0.3, 0.05))),
    ]
    for layers, where in ((LAST_TWO, "last 2"), (ALL, "all layers")):
        for tau in (0.05, 0.15, 0.3, 0.5, 0.7, 0.9):
            base = Dapd(min(0.01, tau), tau, layers=layers)
            entries.append(Contender("DAPD Staged", f"tau {tau:g}, {where}", base))
            entries.append(Contender("DAPD Direct", f"tau {tau:g}, {where}", replace(base, shortcut="direct")))
    return entries + orders()


def orders() -> list[Contender]:
    """DAPD by its graph alone, with one threshold for all passes: positions are scanned in the order of degree times
    confidence, or of confidence. Then the same with the true graph."""
    entries = []
    for order in ("degree", "confidence"):
        by = f"{order} order"
        for tau in (0.15, 0.3, 0.5, 0.7):
            plain = Dapd(tau, tau, shortcut="none", order=order, layers=LAST_TWO)
            entries.append(Contender("graph only", f"tau {tau:g}, last 2, {by}", plain))
        entries.append(Contender("true graph", by, TrueGraph(order=order)))
    return entries


@dataclass(frozen=True)
class Decoded:
    """The results of one decoder."""

    family: str
    setting: str
    n_samples: int
    valid: float
    """Share of samples in which all four constraints hold."""
    constraints: float
    """Share of all constraints, over all samples, that hold."""
    forwards: float
    """Mean forward passes per sample."""
    ties: float
    """Mean number of the twelve true edges whose two ends were committed in the same pass."""


@torch.no_grad()
def decode_with(model: ToyLM, contender: Contender, n_rows: int, seed: int = 0) -> Decoded:
    """Decode `n_rows` samples of every model, at temperature 1, each row with its own seed."""
    edge = true_graph()
    canvases = model.blank(n_rows)
    forwards = 0
    ties = 0
    options = Options(sampling=Sampling(temperature=1.0), seed=seed)
    for step in decode(model, canvases, contender.strategy, options):
        forwards += 1
        ties += edges_within(step.commit, edge)
        canvases[int(str(step.row))] = step.canvas
    broken = broken_constraints(torch.stack([canvas.tokens[canvas.start :] for canvas in canvases]))
    return Decoded(
        contender.family,
        contender.setting,
        len(canvases),
        valid=float((broken == 0).float().mean()),
        constraints=float(1 - broken.float().mean() / 4),
        forwards=forwards / len(canvases),
        ties=ties / len(canvases),
    )


def edges_within(chosen: Bool[Tensor, " n"], edge: Bool[Tensor, "n n"]) -> int:
    """How many edges have both ends among the chosen."""
    return int((chosen[:, None] & chosen & edge).sum()) // 2
