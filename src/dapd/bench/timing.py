"""Clocks (CUDA events on a GPU, and the wall clock on every device), medians, peak memory."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache

import torch

from dapd.errors import DapdError
from dapd.kernels.cuda_graph import capture

GB = 1e9

REST = 0.5
"""Seconds without work after which a GPU counts as rested."""


@dataclass(frozen=True)
class Timing:
    """Durations in milliseconds, one per call, and the memory of a CUDA device while they ran."""

    runs: tuple[tuple[float, ...], ...]
    """The duration of each call, in runs of consecutive calls, by the device's own clock (CUDA events on a GPU)."""
    walls: tuple[float, ...]
    """Mean wall-clock duration of a call, one for each run."""
    period: int = 1
    """Calls after which the work repeats itself; where it is above 1, a mean says more than a median."""
    peak_gb: float | None = None
    """Most memory in use, weights and warm-up included."""
    reserved_gb: float | None = None
    """Most memory reserved on the device: everything else on it has to fit into the rest."""
    grown_gb: float | None = None
    """How much more memory was in use after the timed calls than before them."""

    @property
    def samples(self) -> tuple[float, ...]:
        return tuple(sample for run in self.runs for sample in run)

    @property
    def ms(self) -> float:
        return self.middle(self.samples)

    @property
    def run_ms(self) -> list[float]:
        """The median (or mean, see `period`) of each run, in milliseconds."""
        return [self.middle(run) for run in self.runs]

    def middle(self, values: tuple[float, ...]) -> float:
        return statistics.fmean(values) if self.period > 1 else statistics.median(values)

    @property
    def low(self) -> float:
        return quantile(self.samples, 0.1)

    @property
    def high(self) -> float:
        return quantile(self.samples, 0.9)

    @property
    def wall_ms(self) -> float:
        return statistics.median(self.walls)

    def with_more(self, other: Timing) -> Timing:
        """Both measurements as one. Memory is that of the first: a later one may start with more memory in use."""
        return Timing(
            self.runs + other.runs,
            self.walls + other.walls,
            self.period,
            self.peak_gb,
            self.reserved_gb,
            self.grown_gb,
        )


@dataclass
class Stopwatch:
    """Marks in time on one device. Marking does not wait for the device; reading does."""

    device: torch.device
    events: list[torch.cuda.Event] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def mark(self) -> None:
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self.device))
            self.events.append(event)
        self.seconds.append(time.perf_counter())

    def read(self) -> tuple[float, ...]:
        """Milliseconds between the marks."""
        synchronise(self.device)
        if self.device.type == "cuda":
            return tuple(a.elapsed_time(b) for a, b in zip(self.events, self.events[1:], strict=False))
        return tuple(1e3 * (b - a) for a, b in zip(self.seconds, self.seconds[1:], strict=False))


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def quantile(values: tuple[float, ...], share: float) -> float:
    ordered = sorted(values)
    return ordered[round(share * (len(ordered) - 1))]


def time_calls(
    call: Callable[[], object], device: torch.device, *, warmup: int, repeats: int, rested: bool = False
) -> Timing:
    """Time a function called again and again."""

    def calls() -> Iterator[object]:
        while True:
            yield call()

    return time_steps(calls(), device, warmup=warmup, repeats=repeats, rested=rested)


def time_steps(
    steps: Iterator[object],
    device: torch.device,
    *,
    warmup: int,
    repeats: int,
    period: int = 1,
    rested: bool = False,
) -> Timing:
    """Time consecutive items of an iterator, after some that are not timed; rested: on a GPU that was idle before."""
    clear(device)
    for _ in range(warmup):
        _advance(steps)
    synchronise(device)
    if rested:
        time.sleep(REST)
    else:
        heat(device)
    before = _in_use(device)
    watch = Stopwatch(device)
    start = time.perf_counter()
    watch.mark()
    for _ in range(repeats):
        _advance(steps)
        watch.mark()
    synchronise(device)
    wall = 1e3 * (time.perf_counter() - start) / repeats
    return Timing((watch.read(),), (wall,), period, *_memory(device, before))


def _advance(steps: Iterator[object]) -> None:
    """Make one step and drop it at once: the memory of a step that is held would be counted."""
    if next(steps, None) is None:
        raise DapdError("the decoding ended before it was timed: raise --gen, or lower --warmup and --repeats")


def clear(device: torch.device) -> None:
    """Free what earlier measurements left and reset the peak, so that it belongs to the next measurement alone."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


@cache
def _operands(device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two matrices and room for their product, 0.1 GB in all; kept, so that every measurement includes them."""
    a, b, out = (torch.randn(4096, 4096, device=device, dtype=torch.bfloat16) for _ in range(3))
    return a, b, out


def heat(device: torch.device, seconds: float = 0.4) -> None:
    """Keep a GPU busy with matrix products until its clock is that of steady work.

    A rested GPU runs at a clock that it gives up within a tenth of a second of full load, when it reaches its power
    limit. What is compared must be timed in one state, and decoding is steady work.
    """
    if device.type != "cuda":
        return
    a, b, out = _operands(device)
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        for _ in range(50):
            torch.mm(a, b, out=out)
        synchronise(device)


def _in_use(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def _memory(device: torch.device, before: int) -> tuple[float, float, float] | tuple[None, None, None]:
    if device.type != "cuda":
        return None, None, None
    peak = torch.cuda.max_memory_allocated(device)
    reserved = torch.cuda.max_memory_reserved(device)
    return peak / GB, reserved / GB, (_in_use(device) - before) / GB


def graphed(call: Callable[[], object], warmup: int = 3) -> Callable[[], object]:
    """The same work as a recorded CUDA graph, which leaves out what launching it costs the host."""
    return capture(call, warmups=warmup)
