"""A connection that does not wait forever for a request.

The framework limits neither the size of a request's head nor the time that it may take: connections that say nothing
would keep all others out, and a head without end would fill the memory, before anybody is asked for a key.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS = 30.0
"""Seconds in which the head of a request must have arrived. What follows it has `Limits.body_seconds`."""


class Connection(H11Protocol):
    """Closed when it has not brought a whole head in time. A head above 64 kB is refused: h11 does that, and the other
    parser that the framework may choose does not."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Start the clock where nothing is being answered; it goes on whatever comes in, until that is a whole head."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()
        elif self._late is None:
            self._late = self.loop.call_later(SECONDS, self.transport.close)

    def _stop(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
