"""The progress of a long command."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

EVERY_SECONDS = 15.0
"""Seconds between two lines where there is no terminal."""


class Working:
    """A bar on a terminal; elsewhere, as in a log, a line on stderr every EVERY_SECONDS."""

    def __init__(self, console: Console, what: str, total: int | None = None) -> None:
        self.console = console
        self.what = what
        self.total = total
        self.done = 0
        ends = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        counting = (TextColumn("{task.completed}"), TimeElapsedColumn())
        columns = (TextColumn("{task.description}"), *(counting if total is None else ends))
        self.bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self.job = self.bar.add_task(what, total=total)
        self.started = self.told = time.monotonic()
        self.since: tuple[float, int] | None = None
        """Time and count from which the pace is taken: those of the last line, or of the first thing done, so that
        the start-up does not count."""

    def __enter__(self) -> Working:
        self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.bar.stop()

    def advance(self, n: int = 1) -> None:
        self.done += n
        self.bar.advance(self.job, n)
        now = time.monotonic()
        if n and self.since is None:
            self.since = now, self.done
        if not self.console.is_terminal and not self.console.quiet and now - self.told >= EVERY_SECONDS:
            of = "" if self.total is None else f" of {self.total}"
            line = f"{self.what}: {self.done}{of}, {now - self.started:.0f} s{self._left(now)}"
            print(line, file=sys.stderr, flush=True)
            self.told = now
            self.since = (now, self.done)

    def _left(self, now: float) -> str:
        """The time left, estimated from the pace since the last line."""
        then, before = self.since or (now, self.done)
        if self.total is None or now == then or not before < self.done < self.total:
            return ""
        return f", about {(self.total - self.done) * (now - then) / (self.done - before):.0f} s left"

    def tell(self, text: str) -> None:
        """Print a line that stays above the bar."""
        self.bar.console.print(text, markup=False)
