"""The loop: forward, observe, select, commit, for rows that come and go.

`run_pass` is the paper's algorithm as the device computes it: one forward pass for all rows, then, for the rows of each
strategy, what it observes and what it selects. The rows themselves live on the host: they commit what was selected and
know what they need next (`row.py`). `plan.py` decides which rows share a pass; `graphs.py` records passes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from dapd.canvas import Canvas
from dapd.decoding.graphs import BUCKET, Flight, Recordings, Results, obstacle, weights_of
from dapd.decoding.options import Options, Reuse
from dapd.decoding.plan import Inputs, Outcome, Pass, Plan, Planner, rounded
from dapd.decoding.row import Row, Step
from dapd.decoding.state import Luggage, decisions, luggage_of, remember, repeats
from dapd.decoding.tree import moved
from dapd.errors import DapdError, StrategyContractError
from dapd.models.base import Capture, MaskedLM, Prediction
from dapd.models.cache import KVCache, KVPool
from dapd.models.columns import Span, take
from dapd.sampling import choose
from dapd.strategies.base import Observation, Progress, Selection, Selects, needs_of


def run_pass(
    model: MaskedLM, plan: Plan, pool: KVPool | None, inputs: Inputs, luggage: Sequence[Luggage]
) -> tuple[list[Outcome], list[object]]:
    """One pass of the paper's loop on the device: what comes of it and what is remembered, strategy by strategy.

    Nothing here reads a tensor on the host, and everything that differs between two passes of a kind comes in through
    `inputs` and `luggage`: that is what lets a pass be recorded.
    """
    prediction = forward(model, plan, pool, inputs)
    outcomes: list[Outcome] = []
    memories: list[object] = []
    for number, group in enumerate(plan.groups):
        seen = observe(model, plan, inputs, prediction, number, luggage[number])
        # Copies: a strategy that writes into what it is shown does not change what is committed.
        token = seen.token.clone()
        confidence = seen.confidence.clone()
        selection = select(group.strategy, seen, luggage[number].memory)
        outcomes.append(Outcome(selection.commit, token, confidence, selection.edges if group.edges else None))
        memories.append(selection.memory)
    return outcomes, memories


def forward(model: MaskedLM, plan: Plan, pool: KVPool | None, inputs: Inputs) -> Prediction:
    """Logits of the window's columns and, where a strategy reads it, the attention among them."""
    column = torch.arange(plan.length, device=inputs.tokens.device)
    need = plan.attention
    return model(
        inputs.tokens,
        _either(plan.span, inputs.span),
        _either(plan.window, inputs.window),
        valid=column >= inputs.padding[:, None] if plan.padded else None,
        cache=None if pool is None else KVCache(pool, inputs.places),
        capture=None if need is None else Capture(need.resolve(model.n_layers), need.rows, need.keys),
    )


def observe(
    model: MaskedLM, plan: Plan, inputs: Inputs, prediction: Prediction, number: int, luggage: Luggage
) -> Observation:
    """What the strategy of group `number` sees: tokens, confidences, progress, attention."""
    group = plan.groups[number]
    given = inputs.groups[number]
    view = (group.rows, slice(0, group.width))
    logits = prediction.logits[view]
    dtype = logits.dtype if group.precision == "model" else getattr(torch, group.precision)
    choice = choose(logits, group.sampling, model.profile, dtype, luggage.uniform)
    attention = None
    need = needs_of(group.strategy).attention
    if need is not None and prediction.attention is not None:
        keys = slice(0, group.width) if need.keys == "window" else slice(None)
        attention = prediction.attention[(*view, keys)]
    return Observation(
        masked=given.choices,
        token=choice.token,
        confidence=choice.confidence,
        current=take(inputs.tokens, _either(plan.window, inputs.window))[view],
        progress=Progress(*given.counts),
        position=given.start[:, None] + torch.arange(group.width, device=given.start.device),
        window=given.window,
        block=given.block,
        make_logits=choice.make_logits,
        attention=attention,
        noise=luggage.noise,
    )


def select(strategy: Selects, seen: Observation, memory: object) -> Selection:
    """What the strategy answers, if it has the form of an answer."""
    name = type(strategy).__name__
    shape = seen.masked.shape
    selection = strategy.select(seen, memory)
    if not hasattr(selection, "commit"):
        raise StrategyContractError(f"strategy {name} answered {type(selection).__name__}, not a Selection")
    commit = selection.commit
    if commit.shape != shape or commit.dtype != torch.bool:
        raise StrategyContractError(
            f"strategy {name} selected a {commit.dtype} tensor of shape {list(commit.shape)}; "
            f"it must be bool and of shape {list(shape)}"
        )
    return selection


def _either(fixed: slice | None, given: Tensor | None) -> Span:
    """Columns that all passes of a kind share, or those that this pass names for each row."""
    if fixed is not None:
        return fixed
    assert given is not None
    return given


@dataclass(frozen=True)
class Launch:
    """A pass that was started: a recording on its way, or what has come of it already."""

    one: Pass
    began: float
    flight: Flight | None
    results: Results | None = None

    def wait(self) -> Results:
        """The outcomes, on the host, and what the strategies remember, group by group."""
        if self.flight is not None:
            return self.flight.wait()
        assert self.results is not None
        return self.results


class Decoder:
    """Decodes rows that join and leave between passes.

    `admit` a row at any time, and call `step` for the next pass of every row. At most `places` rows (None: any number)
    are decoded at a time and the others wait; a row leaves in the pass in which it is complete, and the next one takes
    its place. In float32 a row is decoded as it would be alone, whoever shares its passes.
    """

    def __init__(self, model: MaskedLM, recordings: Recordings | None = None, places: int | None = None) -> None:
        if places is not None and places < 1:
            raise DapdError(f"places is {places}; it must be at least 1")
        self.model = model
        self.recordings = recordings
        self.places = places
        self.weights = None if recordings is None else weights_of(model)
        self.planner = Planner(model.profile.pad_id, 1 if recordings is None else BUCKET)
        self.rows: list[Row] = []
        self.waiting: deque[Row] = deque()
        self.failures: dict[Hashable, Exception] = {}
        """Rows that had to leave, by name, and why; the others go on."""
        self.pool: KVPool | None = None
        """Memory for keys and values, once a row reuses any."""
        self.ahead: Launch | None = None
        """The next pass, where it was launched already."""
        self.columns_needed = 0
        self.columns_computed = 0
        """With the padding."""

    def admit(
        self, canvas: Canvas, strategy: Selects, options: Options | None = None, *, name: Hashable = 0, seed: int = 0
    ) -> None:
        """Let a row take part as soon as there is a place. Mistakes in the arguments are reported at once."""
        row = Row(self.model, canvas, strategy, options or Options(), name=name, seed=seed)
        reason = obstacle(self.model, row, self.recordings)
        if row.options.graphs and reason is not None:
            raise DapdError(f"graphs is set, but {reason}; leave it out, or set it to none or false")
        row.recordable = reason is None and row.options.graphs is not False
        if not row.done:
            self.waiting.append(row)

    def cancel(self, name: Hashable) -> None:
        """Let a row leave before it is complete."""
        self.rows = [row for row in self.rows if row.name != name]
        self.waiting = deque(row for row in self.waiting if row.name != name)

    @torch.inference_mode(False)  # what is made in inference mode cannot be written outside of it; pools outlive this
    @torch.no_grad()
    def step(self) -> list[Step]:
        """One pass for every row that has a place, and what it did to each."""
        with on_device(self.model.device):
            if self.ahead is not None:
                steps = self._finish(self.ahead)
            else:
                while self.waiting and self._has_place():
                    self.rows.append(self.waiting.popleft())
                self._make_room()
                steps = self._pass(self.rows)
        self.rows = [row for row in self.rows if not row.done and row.name not in self.failures]
        return steps

    def steps(self) -> Iterator[Step]:
        """All steps until every row is complete; the first failure is raised."""
        try:
            while self.rows or self.waiting:
                yield from self.step()
                for error in self.failures.values():
                    raise error
        finally:
            self.close()

    def close(self) -> None:
        """Leave the memory for keys and values to the next decoder that uses the same recordings."""
        if self.pool is not None and self.recordings is not None:
            self.recordings.give_back(self.pool)
        self.pool = None

    def _has_place(self) -> bool:
        return self.places is None or len(self.rows) < self.places

    def _pass(self, rows: Sequence[Row]) -> list[Step]:
        size = (0, 0) if self.pool is None else (self.pool.rows, self.pool.length)
        steps: list[Step] = []
        for one in self.planner.passes(rows, size):
            try:
                steps += self._finish(self._start(one))
            except Exception as error:
                steps += self._one_by_one(one.rows, error)
        return steps

    def _one_by_one(self, rows: Sequence[Row], error: Exception) -> list[Step]:
        """After a pass that failed: each of its rows alone, so that only those leave that fail by themselves."""
        if len(rows) > 1:
            return [step for row in rows for step in self._pass([row])]
        self.failures[rows[0].name] = error
        return []

    def _start(self, one: Pass) -> Launch:
        """Forward, observe and select on the device: from a recording, or as it is."""
        began = time.perf_counter()
        luggage = [luggage_of(seats, self.model.vocab_size) for seats in one.seats]
        pool = self.pool if one.keeps else None
        run = partial(run_pass, self.model, one.plan, pool)
        if self.recordings is not None and all(row.recordable for row in one.rows):
            flight = self.recordings.launch(self.weights, run, one, luggage, pool)
            if flight is not None:
                return Launch(one, began, flight)
        outcomes, memories = run(moved(one.inputs, self.model.device), luggage)
        return Launch(one, began, None, (moved(outcomes, torch.device("cpu")), memories))

    def _finish(self, launch: Launch) -> list[Step]:
        """Wait for a pass, and commit what was selected."""
        one = launch.one
        flight = launch.flight
        may_repeat = flight is not None and flight.may_repeat() and self._has_only(one.rows)
        outcomes, memories = launch.wait()
        self.ahead = None
        # Before the rows are told anything: the device then computes the next pass while the host does the rest.
        if flight is not None and may_repeat and repeats(one.seats, outcomes):
            flight.again(outcomes)
            self.ahead = Launch(one, time.perf_counter(), flight)
        for seats, memory in zip(one.seats, memories, strict=True):
            remember(seats, memory)
        self.columns_needed += one.columns_needed
        self.columns_computed += one.columns_computed
        steps = []
        for seats, outcome in zip(one.seats, outcomes, strict=True):
            for row, decision in decisions(seats, outcome):
                if row in self.rows:  # it may have been cancelled meanwhile
                    try:
                        steps.append(row.accept(decision, launch.began, len(one.rows)))
                    except DapdError as error:
                        self.failures[row.name] = error
        return steps

    def _has_only(self, rows: Sequence[Row]) -> bool:
        """Whether these are all rows, and nobody waits for a place that is free."""
        return set(rows) == set(self.rows) and not (self.waiting and self._has_place())

    def _make_room(self) -> None:
        """A place for every row that keeps keys and values."""
        keepers = [row for row in self.rows if row.options.reuse is not Reuse.NONE]
        if not keepers:
            return
        rows = max(len(keepers), self.pool.rows if self.pool else 0)
        length = max(rounded(row.length, self.planner.multiple) for row in keepers)
        if self.pool is None:
            self.pool = KVPool(rows, length) if self.recordings is None else self.recordings.borrow(rows, length)
        elif rows > self.pool.rows or length > self.pool.length:
            self.pool = self.pool.grown(rows, max(length, self.pool.length))
        taken = {row.place for row in keepers}
        free = iter([place for place in range(self.pool.rows) if place not in taken])
        for row in keepers:
            if row.place is None:
                row.place = next(free)


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Kernels and graphs are launched on torch's current device: among several it must be the model's."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def decode(
    model: MaskedLM,
    canvases: Sequence[Canvas],
    strategy: Selects,
    options: Options | None = None,
    *,
    places: int | None = None,
    recordings: Recordings | None = None,
) -> Iterator[Step]:
    """Fill every mask of some canvases: every pass of every row as a step, whose `row` is the number of its canvas.

    At most `places` rows (None: all) are decoded at a time, the longest first, so that rows of about the same length
    meet. Mistakes in the arguments are reported at once, before the first step.
    """
    options = options or Options()
    seeds = options.seeds(len(canvases))
    if options.graphs is False:
        recordings = None
    elif recordings is None:
        recordings = Recordings.on(model.device)
    decoder = Decoder(model, recordings, places)
    for number in sorted(range(len(canvases)), key=lambda number: -canvases[number].length):
        decoder.admit(canvases[number], strategy, options, name=number, seed=seeds[number])
    return decoder.steps()
