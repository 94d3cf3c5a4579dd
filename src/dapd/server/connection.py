"""A connection that never waits forever, neither for a request nor for a client that does not read.

The framework limits neither the size of a request's head nor the time that it may take, nor the time for which an
answer may lie unread. Connections that send nothing, or read nothing, would keep all others out, and an endless head
would fill the memory, all before an API key is checked.
"""

from __future__ import annotations

import asyncio
import math

from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS = 30.0
"""Seconds in which the head of a request must have arrived, and in which a client must read some of what was sent. The
rest of a request has `Limits.body_seconds`."""


class Connection(H11Protocol):
    """A connection that is closed if no whole head has arrived in time, or if the client reads nothing of an answer.
    A head above 64 kB is refused: h11 does that, and the other parser that the framework may choose does not."""

    _late: asyncio.TimerHandle | None = None
    _unread: asyncio.Handle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # so that whatever the client has not taken counts as unread
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)
        self._all_read()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_soon(self._check_reading, math.inf)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._all_read()

    def _check_reading(self, before: float) -> None:
        """Cut the connection if all of what was unread is still unread, else look again later."""
        unread = self.transport.get_write_buffer_size()
        if unread >= before:
            self.transport.abort()  # to close it would wait until all is read
        else:
            self._unread = self.loop.call_later(SECONDS, self._check_reading, unread)

    def _all_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _watch(self) -> None:
        """Start the clock where nothing is being answered. Whatever arrives, it runs on until a whole head is there."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()
        elif self._late is None:
            self._late = self.loop.call_later(SECONDS, self.transport.close)

    def _stop(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
