"""The work of a worker: it takes asks for texts, and returns the outcome of each in any order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from traceback import format_exception
from typing import Any, Protocol

import torch

from dapd.canvas import Canvas
from dapd.decoding import Decoder, Options
from dapd.errors import DapdError, first_line
from dapd.generation import Completion, DiffusionLM
from dapd.io.own import CrashError, account, crash
from dapd.strategies import Selects
from dapd.trace import Recorder


@dataclass(frozen=True)
class Order:
    """A text as a decoder takes it."""

    canvas: Canvas
    strategy: Selects
    options: Options
    """With a seed of the text's own, so that every worker draws the same numbers, whatever shares its passes."""

    @property
    def seed(self) -> int:
        return self.options.seeds(1)[0]


class Ask(Protocol):
    """A text that is asked for, in the form in which it travels to a worker."""

    def begin(self, lm: DiffusionLM) -> Order: ...

    def end(self, lm: DiffusionLM, done: Completion) -> Any:
        """The result that is sent back."""


@dataclass(frozen=True)
class Given:
    """A text whose order was made beforehand, and whose whole completion is wanted."""

    order: Order

    def begin(self, lm: DiffusionLM) -> Order:
        return self.order

    def end(self, lm: DiffusionLM, done: Completion) -> Completion:
        return done


@dataclass(frozen=True)
class Call:
    """Any other use of the model: a function that can be imported, and the argument that it gets after the model."""

    function: Callable[[DiffusionLM, Any], Any]
    item: Any


@dataclass(frozen=True)
class Failure:
    """Why there is no result."""

    reason: str
    """The reason in one line."""
    lines: str | None = None
    """The reason with the lines that failed, if they are code of the user's own; else None."""
    traceback: str = ""
    """The whole traceback, from the process where it happened."""

    @classmethod
    def of(cls, error: Exception) -> Failure:
        told = "".join(format_exception(error))
        if isinstance(error, DapdError):
            return cls(first_line(error), traceback=told)
        return cls(account(error), crash(error), told)

    def error(self) -> DapdError:
        """The failure as an exception, with the traceback of the process where it happened as a note."""
        error = DapdError(self.reason) if self.lines is None else CrashError(self.lines)
        if self.traceback:
            error.add_note(self.traceback)
        return error


Outcome = tuple[int, Any]
"""The number of an ask, and its result or its failure."""


class Crew(Protocol):
    """The workers: this process, several processes, or a cluster."""

    def outcomes(self, asks: Sequence[Ask | Call]) -> Iterator[Outcome]:
        """One outcome for every ask, in the order in which they are ready."""


@dataclass(frozen=True)
class Row:
    """A text that is being decoded."""

    ask: Ask
    canvas: Canvas
    recorder: Recorder


class Worker:
    """A model at work: texts are admitted at any time and leave when they are complete or have failed."""

    def __init__(self, lm: DiffusionLM, places: int) -> None:
        self.lm = lm
        self.places = places
        self.decoder = Decoder(lm.network, lm.recordings, places)
        self.rows: dict[int, Row] = {}

    @property
    def busy(self) -> bool:
        return bool(self.rows)

    def outcomes(self, asks: Sequence[Ask | Call]) -> Iterator[Outcome]:
        """One outcome for every ask; the next one takes the place of one that is complete."""
        waiting = deque(enumerate(asks))
        while waiting or self.busy:
            while waiting and len(self.rows) < self.places:
                yield from self.admit(*waiting.popleft())
            yield from self.step()

    def admit(self, number: int, ask: Ask | Call) -> list[Outcome]:
        """Take in an ask; one that needs no pass, or cannot be done at all, has its outcome at once."""
        try:
            if isinstance(ask, Call):
                return [(number, ask.function(self.lm, ask.item))]
            order = ask.begin(self.lm)
            recorder = self.lm.recorder(order.canvas, order.strategy, order.options)
            if not order.canvas.masked.any():
                return [(number, ask.end(self.lm, self.lm.completion(order.canvas, recorder)))]
            self.decoder.admit(order.canvas, order.strategy, order.options, name=number, seed=order.seed)
            self.rows[number] = Row(ask, order.canvas, recorder)
            return []
        except Exception as error:
            return [(number, _failure(error))]

    def step(self) -> list[Outcome]:
        """One pass for every text that has a place."""
        outcomes: list[Outcome] = []
        for step in self.decoder.step() if self.rows else ():
            assert isinstance(step.row, int)
            row = self.rows[step.row]
            try:
                row.recorder.add(step)
                if step.done:
                    outcomes.append((step.row, row.ask.end(self.lm, self.lm.completion(row.canvas, row.recorder))))
                    del self.rows[step.row]
            except Exception as wrong:  # a tokenizer of the user's own can fail on what the model wrote
                self.decoder.cancel(step.row)
                self.decoder.failures[step.row] = wrong
        for name, error in self.decoder.failures.items():
            assert isinstance(name, int)
            del self.rows[name]
            outcomes.append((name, _failure(error)))
        self.decoder.failures.clear()
        return outcomes


def _failure(error: Exception) -> Failure:
    """The failure of one text. A broken device is not the fault of one text, and every later one would fail on it: it
    ends the worker instead."""
    if isinstance(error, torch.AcceleratorError):
        raise error
    return Failure.of(error)
