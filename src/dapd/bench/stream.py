"""Many prompts through a few places of a batch: rows that are replaced as soon as they end, and fixed batches.

Both are compared with an ideal time.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

import torch

from dapd.bench.cases import Bench, Record
from dapd.bench.pace import Pace, Paced, paced, passes, random_canvases, with_set_of
from dapd.bench.timing import clear, heat, synchronise, time_steps
from dapd.canvas import Canvas
from dapd.decoding import Decoder, Options, Recordings
from dapd.decoding.graphs import BUCKET
from dapd.decoding.plan import rounded
from dapd.errors import DapdError
from dapd.strategies import Dapd, Needs, Observation, Selection, Strategy

KNOTS = 5
"""Number of lengths at which the cost of a row's pass is measured; between them it is interpolated."""


@dataclass(frozen=True)
class Uneven:
    """DAPD that commits at a pace of its own in every row, which depends on the length of the row's prompt.

    All rows have this one strategy, so that they are decided together, and yet they take unequal numbers of passes.
    """

    inner: Strategy
    slowest: int = 3
    """Positions that the slowest rows commit per pass; the fastest commit three times as many."""

    @property
    def needs(self) -> Needs:
        return self.inner.needs

    def select(self, seen: Observation, memory: object = None, /) -> Selection:
        choice = self.inner.select(seen, memory)
        count = self.slowest + (11 * seen.window[:, 0]) % (2 * self.slowest + 1)
        return Selection(paced(choice.commit, seen.confidence, seen.masked, count), choice.memory)


@dataclass(frozen=True)
class Load:
    """The prompts to decode, the range of their lengths, and the number of places."""

    prompts: int = 48
    shortest: int = 64
    longest: int = 448
    gen: int = 256
    places: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("prompts", "shortest", "gen", "places"):
            if getattr(self, name) < 1:
                raise DapdError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.longest < self.shortest:
            raise DapdError(f"longest is {self.longest}; it must be at least shortest, {self.shortest}")

    def fitting(self, columns: int) -> tuple[Load, int]:
        """The same load with its lengths divided by the smallest whole number that makes it fit a model of this many
        columns; and that number."""
        by = math.ceil((self.longest + self.gen) / columns)
        lengths = {name: max(1, getattr(self, name) // by) for name in ("shortest", "longest", "gen")}
        return replace(self, **lengths), by

    def lengths(self) -> list[int]:
        """The lengths of the prompts, in the order of their arrival."""
        rng = random.Random(self.seed)
        return [rng.randint(self.shortest, self.longest) for _ in range(self.prompts)]


def stream(bench: Bench, load: Load) -> Iterator[Record]:
    """Decode the same prompts with places that are filled again and in fixed batches, each beside the ideal time.

    The ideal is the time that the passes of all rows take where every pass is full: the sum over the rows of their
    passes x the cost of a row's pass at that row's length. The costs are measured on batches of equal rows, right
    before and right after the run that they are compared with: the speed of a machine may change within minutes.
    """
    lengths = load.lengths()
    canvases = [_canvas(bench, length, load.gen, number) for number, length in enumerate(lengths)]
    strategy = Uneven(with_set_of(bench.model, canvases[:1], Dapd(), max(1, load.gen // 45)))
    recordings = Recordings.on(bench.device)
    about: Record = {
        "kind": "stream",
        "model": bench.name,
        "device": bench.device.type,
        "places": load.places,
        "prompts": load.prompts,
        "prompt": f"{load.shortest}-{load.longest}",
        "gen": load.gen,
    }
    for name, batches in (
        ("places filled again", [list(range(len(canvases)))]),
        ("fixed batches", _chunks(len(canvases), load.places)),
    ):
        if recordings is not None:
            # The first run records the CUDA graphs that the second, which is timed, replays.
            _run(bench, canvases, batches, strategy, load.places, recordings)
        before = RowCosts.measured(bench, load, strategy, recordings)
        clear(bench.device)
        heat(bench.device)
        run = _run(bench, canvases, batches, strategy, load.places, recordings)
        cost = before.averaged_with(RowCosts.measured(bench, load, strategy, recordings))
        ideal = sum(n * cost(lengths[row]) for row, n in run.passes.items())
        yield {
            **about,
            "how": name,
            "row_passes": sum(run.passes.values()),
            "fewest": min(run.passes.values()),
            "most": max(run.passes.values()),
            "seconds": run.seconds,
            "ideal_seconds": ideal,
            "over_ideal": run.seconds / ideal,
            "padding": run.computed / run.needed - 1,
            "prompts_per_s": len(canvases) / run.seconds,
        }
        if name == "fixed batches":
            # Without rows that leave early, each is computed to the end of its batch and padded to the longest row.
            kept = sum(
                len(batch) * max(run.passes[row] for row in batch) * cost(max(lengths[row] for row in batch))
                for batch in batches
            )
            yield {
                **about,
                "how": "fixed batches, computed to the end (from the costs)",
                "seconds": kept,
                "ideal_seconds": ideal,
                "over_ideal": kept / ideal,
            }


@dataclass(frozen=True)
class _Run:
    seconds: float
    passes: dict[int, int]
    """How many passes each row took, by its number."""
    needed: int
    computed: int


def _run(
    bench: Bench,
    canvases: Sequence[Canvas],
    batches: Sequence[Sequence[int]],
    strategy: Uneven,
    places: int,
    recordings: Recordings | None,
) -> _Run:
    counts: dict[int, int] = {}
    needed = computed = 0
    synchronise(bench.device)
    began = time.perf_counter()
    for batch in batches:
        decoder = Decoder(bench.model, recordings, places)
        for row in sorted(batch, key=lambda row: -canvases[row].length):
            decoder.admit(canvases[row], strategy, Options(), name=row)
        for step in decoder.steps():
            counts[int(str(step.row))] = step.index + 1
        needed += decoder.columns_needed
        computed += decoder.columns_computed
    synchronise(bench.device)
    return _Run(time.perf_counter() - began, counts, needed, computed)


def _chunks(n: int, size: int) -> list[list[int]]:
    return [list(range(first, min(n, first + size))) for first in range(0, n, size)]


def _canvas(bench: Bench, length: int, gen: int, seed: int) -> Canvas:
    profile = bench.model.profile
    vocab = bench.model.vocab_size
    ids = torch.randint(vocab, (length,), generator=torch.Generator().manual_seed(seed))
    ids[ids == profile.mask_id] = (profile.mask_id + 1) % vocab
    return Canvas.blank(ids.tolist(), gen, mask_id=profile.mask_id)


@dataclass(frozen=True)
class RowCosts:
    """Seconds that a pass costs for one row, by the length of its prompt."""

    gen: int
    knots: Sequence[int]
    """The lengths at which the cost was measured."""
    values: Sequence[float]
    """The cost at each of them."""

    @classmethod
    def measured(cls, bench: Bench, load: Load, strategy: Uneven, recordings: Recordings | None) -> RowCosts:
        """Time passes over full batches of equal rows, and divide by the number of rows."""
        lengths = {load.shortest + (load.longest - load.shortest) * i // (KNOTS - 1) for i in range(KNOTS)}
        # Lengths that recordings need not round up: the ideal has no padding.
        knots = sorted({max(1, rounded(length + load.gen, BUCKET) - load.gen) for length in lengths})
        values = []
        for knot in knots:
            canvases = random_canvases(bench.model, knot, load.gen, load.places)
            # A short decoding may end before enough of its passes are timed: then the same one starts again.
            steps = (step for _ in count() for step in passes(bench.model, canvases, strategy, Options(), recordings))
            timing = time_steps(steps, bench.device, warmup=bench.warmup, repeats=bench.repeats)
            values.append(timing.wall_ms / 1e3 / load.places)
        return cls(load.gen, knots, values)

    def averaged_with(self, other: RowCosts) -> RowCosts:
        """The mean of two measurements at the same lengths."""
        return replace(self, values=[(x + y) / 2 for x, y in zip(self.values, other.values, strict=True)])

    def __call__(self, length: int) -> float:
        """The cost at a length: interpolated between two knots, or extrapolated from the two nearest."""
        if len(self.knots) == 1:
            return self.values[0] * (length + self.gen) / (self.knots[0] + self.gen)
        place = min(max(1, sum(knot <= length for knot in self.knots)), len(self.knots) - 1)
        (a, b), (x, y) = self.knots[place - 1 : place + 1], self.values[place - 1 : place + 1]
        return x + (y - x) * (length - a) / (b - a)


def first_generations(bench: Bench, lengths: Sequence[int], gen: int, n_steps: int) -> Iterator[Record]:
    """Time whole generations at prompt lengths that were not seen before, each beside the same generation repeated."""
    recordings = Recordings.on(bench.device)
    strategy = None
    for length in lengths:
        canvas = _canvas(bench, length, gen, length)
        if strategy is None:
            strategy = Paced(with_set_of(bench.model, [canvas], Dapd(), max(1, gen // 45)), Pace(steps=n_steps))
        times = []
        for _ in range(3):
            heat(bench.device)
            began = time.perf_counter()
            made = sum(1 for _ in passes(bench.model, [canvas], strategy, Options(), recordings))
            synchronise(bench.device)
            times.append(1e3 * (time.perf_counter() - began) / made)
        yield {
            "kind": "first",
            "model": bench.name,
            "device": bench.device.type,
            "prompt": length,
            "gen": gen,
            "steps": made,
            "first_ms": times[0],
            "ms": min(times[1:]),
            "over_steady": times[0] / min(times[1:]),
        }
