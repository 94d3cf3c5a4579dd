"""A request on the asyncio side: its jobs in the engine, and the events that come back from them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from dapd.generation import DiffusionLM
from dapd.server.engine import Engine
from dapd.server.jobs import Event, Failed, Finished, Job, Passed
from dapd.server.planning import Plan

QUIET = 15.0
"""Seconds without an event after which a stream says that it is alive."""


class Ticket:
    """Hands a plan to the engine and awaits its events."""

    def __init__(self, engine: Engine, lm: DiffusionLM, plan: Plan, deadline: float) -> None:
        """The deadline is one on the clock of `time.monotonic`."""
        self.engine = engine
        self.plan = plan
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self.jobs = [Job(lm, work, index, self._tell, deadline) for index, work in enumerate(plan.works)]
        engine.submit(self.jobs)

    def _tell(self, event: Event) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    def cancel(self) -> None:
        """Give up the texts that are not finished: nobody waits for them."""
        self.engine.cancel(self.jobs)

    async def events(self) -> AsyncIterator[Passed | Finished | Failed | None]:
        """Every event up to the last text's end or the first failure; None where nothing happened for a while."""
        open_texts = len(self.jobs)
        try:
            while open_texts:
                try:
                    event = await asyncio.wait_for(self._events.get(), QUIET)
                except TimeoutError:
                    yield None
                    continue
                open_texts -= isinstance(event, Finished)
                yield event
                if isinstance(event, Failed):
                    return
        finally:
            if open_texts:
                self.cancel()
