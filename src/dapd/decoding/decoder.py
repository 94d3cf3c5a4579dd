"""Rows that come and go: which rows have a place, which passes are next, and what becomes of a row that fails."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from operator import itemgetter

import torch

from dapd.canvas import Canvas
from dapd.decoding.exchange import GroupState, Inputs, repeats
from dapd.decoding.graphs import BUCKET, HOST, Pass, Recordings, obstacle, weights_of
from dapd.decoding.loop import commit, run_pass
from dapd.decoding.options import Options
from dapd.decoding.plan import PassPlan, Planner, rounded
from dapd.decoding.row import Constraint, Row
from dapd.decoding.step import Step
from dapd.decoding.tree import mapped, moved
from dapd.errors import DapdError
from dapd.models.base import MaskedLM
from dapd.models.cache import KVPool
from dapd.models.columns import width
from dapd.strategies.base import Selects

GROWTH = 128
"""A pool of keys and values that has become too short is replaced by one whose length is a multiple of this."""


class Decoder:
    """Decodes rows that join and leave between passes.

    `admit` a row at any time, and call `step` for the next pass of every row. At most `places` rows (None: any number)
    are decoded at a time and the others wait; a row leaves in the pass in which it is complete, and the next one takes
    its place. In float32 a row is decoded as it would be alone, whichever rows share its passes. There is one
    exception: among positions that are exactly alike, as in a canvas of nothing but masks, rounding may choose another.
    """

    def __init__(self, model: MaskedLM, recordings: Recordings | None = None, places: int | None = None) -> None:
        if places is not None and (not isinstance(places, int) or places < 1):
            raise DapdError(f"places is {places}; it must be a whole number of at least 1")
        if not model.graphable:
            recordings = None
        self.model = model
        self.recordings = recordings
        self.places = places
        self.weights = None if recordings is None else weights_of(model)
        self.planner = Planner(1 if recordings is None else BUCKET)
        self.rows: list[Row] = []
        self.waiting: deque[Row] = deque()
        self.failures: dict[Hashable, Exception] = {}
        """The error of each row that had to leave, by the row's name; the other rows continue."""
        self.pool: KVPool | None = None
        """Memory for keys and values, once a row reuses any."""
        self.ahead: list[Pass] = []
        """Passes of the next step that were launched already."""
        self.charged = 0.0
        """The time up to which seconds were charged to rows: passes that overlap share them, and none counts twice."""
        self.columns_needed = 0
        """Columns that had to be computed for the rows, over all passes."""
        self.columns_computed = 0
        """Columns that were computed, padding included."""

    def admit(
        self,
        canvas: Canvas,
        strategy: Selects,
        options: Options | None = None,
        *,
        name: Hashable = 0,
        seed: int = 0,
        constraint: Constraint | None = None,
    ) -> None:
        """Let a row take part as soon as there is a place. Mistakes in the arguments are reported at once."""
        options = options or Options()
        row = Row(self.model, canvas, strategy, options, name=name, seed=seed, constraint=constraint)
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
            while self.waiting and self._has_place():
                self.rows.append(self.waiting.popleft())
            try:
                self._make_room()
            except Exception as error:  # too little memory for the rows that have just come: the others have theirs
                for row in [row for row in self.rows if row.keeps and row.place is None]:
                    self._fail(row, error)
            ahead = self.ahead
            self.ahead = []
            on_their_way = {row for pass_ in ahead for row in pass_.plan.rows}
            steps = self._pass([row for row in self.rows if row not in on_their_way], ahead)
        self.rows = [row for row in self.rows if not row.done]
        return steps

    def passes(self) -> Iterator[list[Step]]:
        """The steps of every pass until all rows are complete; the first failure is raised.

        A caller may stop iterating and call it again: the rows continue where they were. A caller that gives up rows
        which are not complete must call `close`.
        """
        while self.rows or self.waiting:
            yield self.step()
            for error in self.failures.values():
                raise error
        self.close()

    def steps(self) -> Iterator[Step]:
        """The same, step by step. A caller that stops in the middle of a pass misses the other steps of that pass."""
        for steps in self.passes():
            yield from steps

    def close(self, *, keep: bool = True) -> None:
        """Leave the memory for keys and values to the next decoder of the same size that uses the same recordings.

        Without `keep` it is freed, and with it the recordings that use it. Rows that are not complete are given up:
        what they kept is gone.
        """
        self.rows.clear()
        self.waiting.clear()
        self.ahead.clear()
        if self.pool is not None and self.recordings is not None:
            leave = self.recordings.give_back if keep else self.recordings.forget
            leave(self.pool)
        self.pool = None

    def _has_place(self) -> bool:
        return self.places is None or len(self.rows) < self.places

    def _pass(self, rows: Sequence[Row], ahead: Sequence[Pass] = ()) -> list[Step]:
        """Run a pass of some rows in addition to those under way: all replays are started before one is awaited."""
        planned = self.planner.passes(rows, 0 if self.pool is None else self.pool.length)
        # Rows of a pass that is launched ahead stay among themselves. If other rows are planned as well, nothing more
        # is launched ahead, so that the next step plans all rows together.
        steady = not (ahead and planned)
        steps: list[Step] = []
        passes = [*ahead]
        for plan in planned:
            try:
                passes.append(self._start(plan))
            except Exception as error:
                steps += self._one_by_one(plan.rows, error)
        # Passes without a recording come first: the host is busy with them while the device replays the others.
        for pass_ in sorted(passes, key=lambda pass_: pass_.flight is not None):
            try:
                steps += self._finish(pass_, steady)
            except Exception as error:
                steps += self._one_by_one(pass_.plan.rows, error)
        return steps

    def _one_by_one(self, rows: Sequence[Row], error: Exception) -> list[Step]:
        """After a pass that failed, run each of its rows alone, so that only rows which fail on their own leave."""
        if len(rows) > 1:
            return [step for row in rows if row in self.rows for step in self._pass([row])]
        self._fail(rows[0], error)
        return []

    def _fail(self, row: Row, error: Exception) -> None:
        """Note why a row has to leave."""
        if row in self.rows:  # it may have been cancelled meanwhile
            self.failures[row.name] = error
            self.rows.remove(row)

    def _start(self, plan: PassPlan) -> Pass:
        """Prepare forward, observe and select; where they are recorded, the device begins to replay them."""
        began = time.perf_counter()
        pool = self.pool if plan.rows[0].keeps else None  # all rows of a pass keep theirs, or none does
        inputs = Inputs.of(plan, self.model.profile.pad_id, pool)
        states = [GroupState.of(group.members, self.model.vocab_size) for group in plan.groups]
        pass_ = Pass(plan, pool, partial(run_pass, self.model, plan, pool), inputs, states, began)
        if self.recordings is not None and all(row.recordable for row in plan.rows):
            pass_.flight = self.recordings.launch(self.weights, pass_)
            if pass_.flight is not None:
                pass_.states = []  # the recording has its own; these may be gigabytes, and passes may follow for long
        return pass_

    def _finish(self, pass_: Pass, steady: bool) -> list[Step]:
        """Wait for a pass, and commit what was selected; in a steady state its next one is launched before that."""
        plan = pass_.plan
        began = max(pass_.began, self.charged)
        flight = pass_.flight
        if flight is None:
            outcomes, memories = pass_.run(moved(pass_.inputs, self.model.device), pass_.states)
            outcomes = moved(outcomes, HOST)
        else:
            may_repeat = steady and flight.may_repeat() and self._goes_on(plan.rows)
            outcomes, memories = flight.wait()
            if may_repeat and repeats(plan, outcomes):
                # The next pass is launched before the rows get the results of this one: the device computes it while
                # the host goes on with the rows.
                flight.again(plan, outcomes)
                self.ahead.append(pass_)
        self.columns_needed += sum(width(row.columns()) for row in plan.rows)
        self.columns_computed += len(plan.members) * width(plan.span)
        steps = []
        for group, outcome, memory in zip(plan.groups, outcomes, memories, strict=True):
            for index, row in enumerate(dict.fromkeys(group.members)):
                if row in self.rows:  # it may have been cancelled meanwhile
                    try:
                        row.memory = mapped(itemgetter(index), memory)
                        part = mapped(itemgetter(index), outcome)
                        steps.append(commit(row, part, began, len(plan.rows)))
                    except Exception as error:  # of any kind: rows before it have advanced, so the pass is not repeated
                        self._fail(row, error)
        self.charged = time.perf_counter()
        return steps

    def _goes_on(self, rows: Sequence[Row]) -> bool:
        """Whether none of these rows was cancelled, and no waiting row could take a place now."""
        return all(row in self.rows for row in rows) and not (self.waiting and self._has_place())

    def _make_room(self) -> None:
        """Give every row that keeps keys and values a place in a pool that is large enough."""
        keepers = [row for row in self.rows if row.keeps]
        if not keepers:
            return
        rows = len(keepers)
        length = max(rounded(row.length, self.planner.multiple) for row in keepers)
        if self.pool is None:
            self.pool = KVPool(rows, length) if self.recordings is None else self.recordings.borrow(rows, length)
        elif rows > self.pool.rows or length > self.pool.length:
            self._enlarge(self.pool, rows, length)
        taken = {row.place for row in keepers}
        free = iter([place for place in range(self.pool.rows) if place not in taken])
        for row in keepers:
            if row.place is None:
                row.place = next(free)
                # The last row in this place may have left nan there, and 0 times nan is nan.
                self.pool.clear(row.place)

    def _enlarge(self, pool: KVPool, rows: int, length: int) -> None:
        """Move the kept keys and values to a pool with room for `rows` rows of `length` columns.

        Every pool needs recordings of its own. So where passes are recorded, the new pool has more room than is asked
        for: otherwise a server whose rows arrive one by one, each longer than the last, would need a pool for each.
        """
        if self.recordings is not None:
            self.recordings.forget(pool)
            rows = rows if rows <= pool.rows else min(2 * rows, self.places or 2 * rows)
            length = length if length <= pool.length else rounded(length, GROWTH)
        self.pool = pool.grown(max(rows, pool.rows), max(length, pool.length))


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Kernels and graphs are launched on torch's current device: where there are several, it must be the model's."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def decode(
    model: MaskedLM,
    canvases: Sequence[Canvas],
    strategy: Selects,
    options: Options | None = None,
    *,
    places: int | None = None,
    recordings: Recordings | None = None,
    constraint: Constraint | None = None,
) -> Iterator[Step]:
    """Fill every mask of some canvases: every pass of every row as a step, whose `row` is the number of its canvas.

    At most `places` rows (None: all) are decoded at a time, the longest first, so that rows of similar length share
    passes. Mistakes in the arguments are reported at once, before the first step.
    """
    options = options or Options()
    seeds = options.seeds(len(canvases))
    if options.graphs is False:
        recordings = None
    elif recordings is None:
        recordings = Recordings.on(model.device)
    decoder = Decoder(model, recordings, places)
    for number in sorted(range(len(canvases)), key=lambda number: -canvases[number].length):
        decoder.admit(canvases[number], strategy, options, name=number, seed=seeds[number], constraint=constraint)
    return _to_the_end(decoder)


def _to_the_end(decoder: Decoder) -> Iterator[Step]:
    """The steps of a decoder that is not used afterwards: it is closed even if the caller stops early."""
    try:
        yield from decoder.steps()
    finally:
        decoder.close()
