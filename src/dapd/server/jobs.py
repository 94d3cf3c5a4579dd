"""One text in the engine: the work that was asked for, the events that report on it, and its result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from dapd.canvas import Canvas
from dapd.decoding import Constraint, Options, Step
from dapd.generation import DiffusionLM
from dapd.server.transcript import Transcript
from dapd.strategies import Selects
from dapd.trace import Record, Recorder
from dapd.viewer import packed_graph

Reason = Literal["fault", "timeout", "closed", "gone"]

LOWEST = -9999.0
"""The log-probability that stands for minus infinity, as in other servers: JSON cannot write that."""


@dataclass(frozen=True)
class Work:
    """A text to decode, and how to decode it."""

    canvas: Canvas
    strategy: Selects
    options: Options
    seed: int
    first: int
    """Position at which the text of the answer begins."""
    stops: tuple[str, ...] = ()
    constraint: Constraint | None = None
    per_pass: bool = False
    """Whether every pass is reported, and not only those that add text."""
    label: str = ""
    """The name of the strategy in the request."""


@dataclass(frozen=True)
class Scored:
    """A token of the answer with the log-probability of the pass that committed it."""

    token: int
    log_p: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Passed:
    """Event: a pass of a text."""

    index: int
    """Number of the text in its request, from 0."""
    text: str
    """The text that was added to the finished beginning."""
    record: Record | None = None
    """The record of the pass; None where not every pass is reported."""
    masked: list[int] = field(default_factory=list)
    """The positions that were masked before it."""
    edges: str | None = None
    """Its graph, packed, where the request asked for it."""


@dataclass(frozen=True)
class Finished:
    """Event: a text is complete."""

    index: int
    text: str
    ids: list[int]
    finish_reason: Literal["stop", "length"]
    n_tokens: int
    """Generated tokens, counted as in a trace: up to the end of the text, or of a stop string."""
    passes: int
    scored: list[Scored]


@dataclass(frozen=True)
class Failed:
    """Event: a text failed. With the reason `gone` its client has left, and no answer is sent."""

    index: int
    reason: Reason


Event = Passed | Finished | Failed


@dataclass(eq=False)
class Job:
    """A text in the engine. Only the engine's thread changes it once it is submitted."""

    lm: DiffusionLM
    work: Work
    index: int
    tell: Callable[[Event], None]
    """Called with every event, on the engine's thread."""
    deadline: float
    """On the clock of `time.monotonic`."""
    arrived: float = field(default_factory=time.monotonic)
    began: float | None = None
    first_text_at: float | None = None
    """When the first of its text was finished, on the same clock; None: none is yet."""

    def __post_init__(self) -> None:
        work = self.work
        self.transcript = Transcript(self.lm, work.canvas, work.first, work.stops)
        self.recorder: Recorder | None = None
        if work.per_pass:
            self.recorder = self.lm.recorder(work.canvas, work.strategy, work.options)
        self.passes = 0
        self._scored: dict[int, Scored] = {}

    def add(self, step: Step) -> Finished | None:
        """Take in a pass and report it; returns the last event once the text is complete."""
        self.passes += 1
        added = self.transcript.read(step.canvas)
        if added and self.first_text_at is None:
            self.first_text_at = time.monotonic()
        if self.work.options.record_top:
            self._score(step)
        if self.recorder is not None:
            self.tell(self._passed(self.recorder, step, added))
        elif added:
            self.tell(Passed(self.index, added))
        complete = step.done or (self.transcript.stopped and self.work.options.early_stop)
        return self._finished(step.canvas) if complete else None

    def _passed(self, recorder: Recorder, step: Step, added: str) -> Passed:
        masked = recorder.before
        edges = None if step.edges is None else packed_graph(step.edges, masked, step.window)
        recorder.add(replace(step, edges=None))  # the recorder would write the edges out as a list, and keep it
        return Passed(self.index, added, recorder.trace.steps[-1], masked.nonzero().flatten().tolist(), edges)

    def _finished(self, canvas: Canvas) -> Finished:
        said = self.transcript
        places = range(said.first, said.first + len(said.ids))
        scored = [self._scored[place] for place in places if place in self._scored]
        n_tokens = said.n_tokens(canvas)
        return Finished(self.index, said.text, said.ids, said.finish_reason, n_tokens, self.passes, scored)

    def _score(self, step: Step) -> None:
        assert step.top is not None
        for place in step.commit.nonzero().flatten().tolist():
            p = float(step.confidence[place])
            top = zip(step.top.token[place].tolist(), step.top.log_p[place].tolist(), strict=True)
            best = tuple((token, max(LOWEST, log_p)) for token, log_p in top)
            log_p = math.log(p) if p > 0 else LOWEST
            self._scored[step.window.start + place] = Scored(int(step.token[place]), log_p, best)
