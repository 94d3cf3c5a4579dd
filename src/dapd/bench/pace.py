"""A fixed number of commits per step, so that a benchmark makes the same number of steps with every decoder."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dapd.canvas import Canvas
from dapd.decoding import Decoder, Options, Recordings, Step
from dapd.graph import degrees, edges_above, independent_set, normalise
from dapd.models import MaskedLM, Transformer
from dapd.strategies import Dapd, Needs, Observation, Progress, Selection, Selects
from dapd.strategies.base import needs_of, top
from dapd.strategies.topk import quota


@dataclass(frozen=True)
class Pace:
    """How many positions each step commits: `k`, or as many as a generation in `steps` steps needs."""

    k: int = 1
    steps: int | None = None
    """Steps of a whole generation; None: `k` positions each."""

    def now(self, progress: Progress) -> Int[Tensor, " batch"] | int:
        """Positions to commit in this step, without asking the device."""
        return quota(progress, self.steps, self.k)

    def count(self, index: int, total: int) -> int:
        """Positions to commit in step `index`, counted from 0, of a block that had `total` masks at first."""
        if self.steps is None:
            return self.k
        return max(1, total // self.steps + (index < total % self.steps))


def paced(
    commit: Bool[Tensor, "batch n"],
    confidence: Float[Tensor, "batch n"],
    masked: Bool[Tensor, "batch n"],
    count: Int[Tensor, " batch"] | int,
) -> Bool[Tensor, "batch n"]:
    """Exactly `count` positions of each row: of those chosen first, then of the other masks, by confidence."""
    return top(commit.float() * 2 + confidence.float(), masked, count)


@dataclass(frozen=True)
class Paced:
    """A strategy that makes the choice of `inner`, so that its cost is measured, but commits at a given pace."""

    inner: Selects
    pace: Pace

    @property
    def needs(self) -> Needs:
        return needs_of(self.inner)

    def select(self, seen: Observation, memory: object = None, /) -> Selection:
        choice = self.inner.select(seen, memory)
        commit = paced(choice.commit, seen.confidence, seen.masked, self.pace.now(seen.progress))
        return dataclasses.replace(choice, commit=commit)


def random_canvases(model: Transformer, prompt: int, gen: int, batch: int = 1, *, half: bool = False) -> list[Canvas]:
    """Random prompts, followed by masks; half: every second mask is decided already."""
    mask_id = model.profile.mask_id
    vocab = model.config.vocab_size
    ids = torch.randint(vocab, (batch, prompt + gen), generator=torch.Generator().manual_seed(0))
    ids[ids == mask_id] = (mask_id + 1) % vocab
    canvases = [Canvas.blank(row[:prompt].tolist(), gen, mask_id=mask_id) for row in ids]
    if half:
        for canvas, row in zip(canvases, ids, strict=True):
            canvas.tokens[prompt::2] = row[prompt::2]
    return canvases


def passes(
    model: MaskedLM,
    canvases: Sequence[Canvas],
    strategy: Selects,
    options: Options,
    recordings: Recordings | None = None,
) -> Iterator[list[Step]]:
    """The steps of a decoding, pass by pass."""
    decoder = Decoder(model, None if options.graphs is False else recordings)
    for number, canvas in enumerate(canvases):
        decoder.admit(canvas, strategy, options, name=number)
    try:
        yield from decoder.passes()
    finally:
        decoder.close()


def with_set_of(model: Transformer, canvases: Sequence[Canvas], strategy: Dapd, size: int) -> Dapd:
    """The strategy with the edge threshold at which its greedy set has about `size` positions on these canvases.

    Attention of random weights is nearly even, which makes every pair an edge at the paper's thresholds and leaves one
    position a step: far from what a trained model does.
    """
    spy = Spy(strategy)
    next(passes(model, canvases, spy, Options()))
    [seen] = spy.seen
    scores = strategy.scores(seen)
    priority = degrees(scores) * seen.confidence.float()
    low, high = 0.0, 1.0
    for _ in range(12):
        middle = (low + high) / 2
        tau = torch.full((len(canvases),), middle, device=scores.device)
        edges = edges_above(normalise(scores, strategy.edge_norm), tau, strategy.direction)
        taken = independent_set(edges, priority, seen.masked).sum(-1).float().mean().item()
        low, high = (middle, high) if taken < size else (low, middle)
    return dataclasses.replace(strategy, tau_min=high, tau_max=high)


class Spy:
    """A strategy that chooses as `inner` does and keeps every observation."""

    def __init__(self, inner: Selects) -> None:
        self.inner = inner
        self.needs = dataclasses.replace(needs_of(inner), recordable=False)
        self.seen: list[Observation] = []

    def select(self, seen: Observation, memory: object = None, /) -> Selection:
        self.seen.append(seen)
        return self.inner.select(seen, memory)
