"""Server-sent events, and a watch for clients that hang up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dapd.server.answers import Answers
from dapd.server.jobs import Failed, Finished
from dapd.server.mistakes import FAULTS, body
from dapd.server.tickets import Ticket

ALIVE = ": the server is at work\n\n"
"""A comment line, which clients skip. Named events, ids and retry lines would break the stock client."""


@asynccontextmanager
async def watching(receive: Receive, left: Callable[[], object]) -> AsyncIterator[None]:
    """Inside this context `left` is called as soon as the client hangs up."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        left()

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()


class EventStream(Response):
    """The events of a request as they come. If the client hangs up or does not read, the work is given up."""

    media_type = "text/event-stream"

    def __init__(self, ticket: Ticket, answers: Answers, *, with_usage: bool, write_seconds: float) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.ticket = ticket
        self.answers = answers
        self.with_usage = with_usage
        self.write_seconds = write_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with watching(receive, self.ticket.cancel):
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                async for text in self._texts():
                    chunk = {"type": "http.response.body", "body": text.encode(), "more_body": True}
                    await asyncio.wait_for(send(chunk), self.write_seconds)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except OSError:  # the client left in the middle of a write, or read too slowly (TimeoutError)
            self.ticket.cancel()

    async def _texts(self) -> AsyncIterator[str]:
        answers = self.answers
        done = list[Finished]()
        for job in self.ticket.jobs:
            yield _data(answers.first(job.index))
            if job.recorder is not None:
                yield _data(answers.opened(job))
        async for event in self.ticket.events():
            match event:
                case None:
                    yield ALIVE
                case Failed():
                    if event.reason != "gone":
                        status, message = FAULTS[event.reason]
                        yield _data(body(status, message))
                    return
                case Finished():
                    done.append(event)
                    yield _data(answers.last(event))
                case _:
                    yield _data(answers.passed(event))
        if self.with_usage:
            yield _data(answers.total(done))
        yield "data: [DONE]\n\n"


def _data(content: object) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(',', ':'))}\n\n"
