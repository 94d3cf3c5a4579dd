"""A fixed number of commits per step, so that a benchmark makes the same number of steps with every decoder."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dapd import Options, decode
from dapd.canvas import Canvas
from dapd.graph import conflicts, degrees, independent_set, normalise
from dapd.models import Transformer
from dapd.strategies import Dapd, Observation, Progress, Selection, Strategy
from dapd.strategies.base import top
from dapd.strategies.topk import quota


@dataclass(frozen=True)
class Pace:
    """So many positions a step, or as many as a number of steps needs."""

    k: int = 1
    steps: int | None = None
    """Steps of a whole generation; None: `k` positions each."""

    def now(self, progress: Progress) -> Int[Tensor, " batch"] | int:
        """Positions to commit in this step, without asking the device."""
        return quota(progress, self.steps, self.k)

    def count(self, index: int, total: int) -> int:
        """The same from the number of steps made before, for one block of `total` masks."""
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


def with_pace(strategy: Strategy, pace: Pace) -> Strategy:
    """The strategy, choosing as it does and paying for it, but committing at the given pace."""
    fields = {f.name: getattr(strategy, f.name) for f in dataclasses.fields(strategy)}
    # mypy takes the hash of instances for that of the class.
    return _paced_kind(type(strategy), pace)(**fields)  # type: ignore[arg-type]


@cache
def _paced_kind(kind: type[Strategy], pace: Pace) -> type[Strategy]:
    """A subclass rather than a wrapper: the engine treats it as what it is, with all that its class declares.

    One class for each pace, so that equal settings are equal strategies to whatever keeps work between decodings.
    """

    def select(self: Strategy, seen: Observation, memory: object = None, /) -> Selection:
        chosen = kind.select(self, seen, memory)
        commit = paced(chosen.commit, seen.confidence, seen.masked, pace.now(seen.progress))
        return dataclasses.replace(chosen, commit=commit)

    return type(f"Paced{kind.__name__}", (kind,), {"select": select, **_declarations(kind)})


def _declarations(kind: type[Strategy]) -> dict[str, object]:
    """What a class declares of its `select`: of another `select` it holds only if that is said again (`declared`)."""
    found: dict[str, object] = {}
    for level in kind.__mro__:
        for name in ("recordable", "logits"):
            if name in vars(level):
                found.setdefault(name, vars(level)[name])
        if "select" in vars(level):
            break
    return found


def random_canvas(model: Transformer, prompt: int, gen: int, batch: int = 1, *, half: bool = False) -> Canvas:
    """Random prompts and masks behind them; half: every second mask is decided already."""
    profile, vocab = model.profile, model.config.vocab_size
    ids = torch.randint(vocab, (batch, prompt + gen), generator=torch.Generator().manual_seed(0))
    ids[ids == profile.mask_id] = (profile.mask_id + 1) % vocab
    rows = ids[:, :prompt].tolist()
    canvas = Canvas.blank(rows, gen, mask_id=profile.mask_id, pad_id=profile.pad_id, device=model.device)
    if not half:
        return canvas
    tokens = canvas.tokens.clone()
    tokens[:, prompt::2] = ids.to(model.device)[:, prompt::2]
    return dataclasses.replace(canvas, tokens=tokens)


def with_set_of(model: Transformer, canvas: Canvas, strategy: Dapd, size: int) -> Dapd:
    """The strategy with the edge threshold at which its greedy set has about `size` positions on this canvas.

    Attention of random weights is nearly even, which makes every pair an edge at the paper's thresholds and leaves one
    position a step: far from what a trained model does.
    """
    [seen] = _observed(model, canvas, strategy)
    scores = strategy.scores(seen)
    priority = degrees(scores) * seen.confidence.float()
    low, high = 0.0, 1.0
    for _ in range(12):
        tau = torch.full((canvas.batch,), (low + high) / 2, device=scores.device)
        edges = conflicts(normalise(scores, strategy.edge_norm), tau, strategy.direction)
        found = independent_set(edges, priority, seen.masked).sum(-1).float().mean().item()
        low, high = ((low + high) / 2, high) if found < size else (low, (low + high) / 2)
    return dataclasses.replace(strategy, tau_min=high, tau_max=high)


def _observed(model: Transformer, canvas: Canvas, strategy: Dapd) -> Iterator[Observation]:
    """What the strategy sees in the first step."""
    found: list[Observation] = []

    def select(self: Dapd, seen: Observation, memory: object = None, /) -> Selection:
        found.append(seen)
        return Dapd.select(self, seen, memory)

    spy = cast(Dapd, type("Spy", (Dapd,), {"select": select})(**dataclasses.asdict(strategy)))
    next(decode(model, canvas, spy, Options(graphs=False)))
    yield found[0]
