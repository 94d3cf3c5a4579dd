"""The measurements: of one forward pass, one step or one whole generation, each at given lengths and settings."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch

from dapd import kernels
from dapd.bench import naive
from dapd.bench.floor import Rate, forward_flops
from dapd.bench.pace import Pace, Paced, passes, random_canvases, with_set_of
from dapd.bench.timing import Timing, clear, graphed, synchronise, time_calls, time_steps
from dapd.canvas import Canvas
from dapd.decoding import Options, Recordings, Reuse
from dapd.errors import DapdError, unknown
from dapd.io.own import is_own
from dapd.models import Capture, Transformer
from dapd.models.fp8 import is_fp8
from dapd.settings import named
from dapd.strategies import PRESETS, AttentionNeed, Dapd, Selects, TopK
from dapd.strategies.base import needs_of

Record = dict[str, Any]
"""One measured row, as plain values."""

NAIVE: dict[str, naive.Scan] = {"naive": "taken", "naive-pairs": "pairs"}
"""Names by which the naive path can be given as a strategy -> its scan. It is DAPD as `dapd-staged` is set."""

CAPTURES = {
    "none": "no attention is captured",
    "auto": "captured as the model does it on this device",
    "none-torch": "none, without Triton kernels anywhere",
    "torch": "captured without Triton kernels anywhere",
    "eager": "the naive path's: whole attention matrices in the captured layers, logits for every column",
}


@dataclass(frozen=True)
class Case:
    """The settings of a measurement. Mistakes in them are found when it is made, not when it is run."""

    strategy: str = "original"
    prompt: int = 256
    gen: int = 256
    batch: int = 1
    reuse: str = "none"
    refresh: int | None = None
    refresh_until: int | None = None
    """As in `Options`. Where single steps are timed, the timed ones come after it: none of them is a full pass."""
    block: int | None = None
    graphs: bool | None = None
    """Whether passes are recorded as CUDA graphs; None: as the engine decides."""
    settle: int | None = None
    taken: int | None = None
    """DAPD: choose the edge threshold so that the set has about this many positions; None: the preset's threshold."""

    def __post_init__(self) -> None:
        for name, least in (("prompt", 0), ("gen", 2), ("batch", 1)):
            if getattr(self, name) < least:
                raise DapdError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        known = self.strategy in NAIVE or self.strategy in PRESETS or "@" in self.strategy or is_own(self.strategy)
        if not known:
            raise unknown("strategy", self.strategy, [*PRESETS, *NAIVE])
        self.rule()
        if self.strategy in NAIVE and self.reuse != "none":
            raise DapdError("the naive path reuses nothing; give --reuse none with it")
        if self.block is not None and self.gen % self.block:
            raise DapdError(f"blocks of {self.block} do not divide the {self.gen} new tokens; see --block")
        self.options()

    @property
    def length(self) -> int:
        return self.prompt + self.gen

    def options(self) -> Options:
        plain = Options(block_length=self.block, graphs=self.graphs)
        if self.reuse == "none":
            return plain
        kept = dataclasses.replace(
            plain, reuse=Reuse(self.reuse), refresh=self.refresh, refresh_until=self.refresh_until
        )
        return kept if self.settle is None or self.reuse != "settled" else dataclasses.replace(kept, settle=self.settle)

    def rule(self) -> Selects:
        """The decoder, or the one that the naive path imitates."""
        return named("dapd-staged" if self.strategy in NAIVE else self.strategy).strategy

    def period(self, masks: int) -> int:
        """Number of steps from one full pass to the next where columns are reused, else 1."""
        if self.reuse == "none" or self.refresh_until is not None:
            return 1
        if self.refresh is not None or self.reuse == "settled":
            return self.refresh or 1
        return masks if self.block is None else max(1, masks * self.block // self.gen)

    @property
    def last_full(self) -> int:
        """Number of first steps to which full passes are confined by `refresh_until`; 0 where they are not."""
        return 0 if self.reuse == "none" or self.refresh_until is None else self.refresh_until

    def flops(self, model: Transformer, masks: int) -> float | None:
        """Operations of a step, averaged over a period; None where they depend on what is decided."""
        seen = needs_of(self.rule()).sees
        window = self.length if seen == "canvas" else self.gen if seen == "region" else self.block or self.gen
        full = forward_flops(model.config, self.length, window, batch=self.batch)
        if self.reuse == "none":
            return full
        if self.reuse == "dual":
            computed = self.block or self.gen
        elif self.reuse == "prefix" and self.block is None:
            computed = self.gen
        else:
            return None
        part = forward_flops(model.config, self.length, min(window, computed), batch=self.batch, computed=computed)
        if self.refresh_until is not None:
            return part  # the steps after the last full pass
        period = self.period(masks)
        return (full + (period - 1) * part) / period


@dataclass(frozen=True)
class Bench:
    """A model under measurement."""

    model: Transformer
    name: str
    rate: Rate
    warmup: int = 5
    repeats: int = 15

    @property
    def device(self) -> torch.device:
        return self.model.device

    def forward(self, case: Case, capture: str, *, graph: bool = False) -> Record:
        """Forward passes over a half-masked canvas, called one by one or recorded as a CUDA graph."""
        timing = self.time_forward(case, capture, graph=graph)
        flops = forward_flops(self.model.config, case.length, case.gen, batch=case.batch)
        return {**self.record("forward", case, timing, flops), "strategy": None, "graphs": graph, "capture": capture}

    def time_forward(self, case: Case, capture: str, *, graph: bool = False) -> Timing:
        if capture not in CAPTURES:
            raise unknown("capture method", capture, CAPTURES)
        canvases = random_canvases(self.model, case.prompt, case.gen, case.batch, half=True)
        tokens = torch.stack([canvas.tokens for canvas in canvases]).to(self.device)
        window = slice(case.prompt, case.length)
        layers = AttentionNeed().resolve(self.model.n_layers)
        asked = Capture(layers) if capture in ("auto", "torch") else None

        def call() -> object:
            if capture == "eager":
                return naive.forward(self.model, tokens, Dapd())
            return self.model(tokens, slice(0, case.length), window, capture=asked)

        with torch.no_grad(), kernels.disabled() if capture.endswith("torch") else nullcontext():
            if not graph:
                return time_calls(call, self.device, warmup=self.warmup, repeats=self.repeats)
            timing = time_calls(graphed(call), self.device, warmup=self.warmup, repeats=self.repeats)
            # The memory of a replay was taken when the graph was recorded, before memory was measured.
            return dataclasses.replace(timing, peak_gb=None, reserved_gb=None)

    def step(self, case: Case) -> Record:
        """Time consecutive steps from a half-masked canvas on, each of which commits one position per row."""
        return self.step_record(case, self.time_step(case))

    def step_record(self, case: Case, timing: Timing) -> Record:
        return self.record("step", case, timing, case.flops(self.model, case.gen // 2))

    def time_step(self, case: Case) -> Timing:
        """Time consecutive steps: whole periods, and at least `repeats` steps.

        The engine may record a kind of step as a CUDA graph when it meets it the second time. With blocks or reuse
        there are several kinds (full passes and others, different numbers of columns), so the same steps are made
        twice before they are timed.
        """
        masks = case.gen // 2
        period = case.period(masks)
        if case.block is not None and case.refresh_until is not None:
            raise DapdError("every block starts with a full pass: time steps with --block or --refresh-until, not both")
        repeats = -(-self.repeats // period) * period
        warmup = max(-(-self.warmup // period) * period, case.last_full)
        if warmup + repeats > masks:
            raise DapdError(
                f"{warmup} + {repeats} steps need as many masks, and half of the {case.gen} new tokens are "
                f"{masks}: raise --gen, or lower --warmup and --repeats"
            )
        canvases = random_canvases(self.model, case.prompt, case.gen, case.batch, half=True)
        rule = self.rule(case, canvases)
        recordings = Recordings.on(self.device)
        for _ in range(0 if case.block is None and case.reuse == "none" else 2):
            for _ in itertools.islice(self.passes(case, canvases, rule, Pace(), recordings), warmup + repeats):
                pass
        steps = self.passes(case, canvases, rule, Pace(), recordings)
        return time_steps(steps, self.device, warmup=warmup, repeats=repeats, period=period)

    def rule(self, case: Case, canvases: Sequence[Canvas]) -> Selects:
        """The case's decoder, with the edge threshold that it asks for."""
        rule = case.rule()
        if case.taken is None or not isinstance(rule, Dapd):
            return rule
        return with_set_of(self.model, canvases, rule, case.taken)

    def passes(
        self, case: Case, canvases: Sequence[Canvas], rule: Selects, pace: Pace, recordings: Recordings | None
    ) -> Iterator[list[Canvas]]:
        """The canvases after each pass of a decoding at a fixed pace."""
        if case.strategy in NAIVE:
            assert isinstance(rule, Dapd)
            yield from naive.naive_decode(self.model, canvases, rule, scan=NAIVE[case.strategy], pace=pace)
            return
        # LLaDA's own rule commits exactly `k` positions by itself and needs no `Paced` around it.
        exact = type(rule) is TopK and rule.steps is None and pace.steps is None and rule.k == pace.k
        strategy = rule if exact else Paced(rule, pace)
        for steps in passes(self.model, canvases, strategy, case.options(), recordings):
            yield [step.canvas for step in steps]

    def decode(self, case: Case, n_steps: int) -> Record:
        """Whole generations in a fixed number of steps."""
        if not 1 <= n_steps <= case.gen:
            raise DapdError(f"steps is {n_steps}; allowed: 1 to the {case.gen} new tokens")
        blank = random_canvases(self.model, case.prompt, case.gen, case.batch)
        rule = self.rule(case, blank)
        recordings = Recordings.on(self.device)
        done = blank
        made = 0

        def generation() -> object:
            nonlocal done, made
            made = 0
            for canvases in self.passes(case, blank, rule, Pace(steps=n_steps), recordings):
                done = canvases
                made += 1
            return done

        timing = time_calls(generation, self.device, warmup=self.warmup, repeats=self.repeats)
        flops = case.flops(self.model, case.gen) if case.reuse == "none" else None
        record = self.record("decode", case, timing, None if flops is None else flops * made)
        eos_id = self.model.profile.eos_id
        tokens = sum(int((canvas.tokens[canvas.start :] != eos_id).sum()) for canvas in done)
        return {**record, "steps": made, "tokens": tokens, "tokens_per_s": 1e3 * tokens / timing.wall_ms}

    def record(self, kind: str, case: Case, timing: Timing, flops: float | None) -> Record:
        floor = None if flops is None else self.rate.floor_ms(flops)
        return {
            "kind": kind,
            "model": self.name,
            "device": self.device.type,
            "dtype": "fp8" if is_fp8(self.model) else str(self.model.dtype).removeprefix("torch."),
            **dataclasses.asdict(case),
            "ms": timing.ms,
            "low_ms": timing.low,
            "high_ms": timing.high,
            "wall_ms": timing.wall_ms,
            "samples": len(timing.samples),
            "run_ms": timing.run_ms,
            "tflops": None if flops is None else flops / timing.ms / 1e9,
            "floor_ms": floor,
            "floor_ratio": None if floor is None else timing.ms / floor,
            "rested_floor_ms": None if flops is None else self.rate.rested_floor_ms(flops),
            "peak_gb": timing.peak_gb,
            "reserved_gb": timing.reserved_gb,
            "grown_gb": timing.grown_gb,
        }


def guarded(measure: Callable[[], Record], otherwise: Record, device: torch.device) -> Record:
    """The record, or `otherwise` with the error in it: one failure must not cost the rest of a run."""
    started = time.perf_counter()
    try:
        record = measure()
        synchronise(device)
    except Exception as error:
        reason = (str(error).strip() or "no message").splitlines()[0]
        record = {**otherwise, "error": f"{type(error).__name__}: {reason}"}
    with suppress(RuntimeError):  # where the device is lost, every later record says so
        clear(device)
    return {**record, "seconds": round(time.perf_counter() - started, 2)}
