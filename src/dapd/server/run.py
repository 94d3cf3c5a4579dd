"""A server from its start to its end: on SIGTERM it takes no more requests and finishes those that are here."""

from __future__ import annotations

import asyncio
import signal
from types import FrameType

import uvicorn

from dapd.generation import DiffusionLM
from dapd.server.app import make_app
from dapd.server.config import Config
from dapd.server.engine import Engine

CONNECTIONS = 1024


class DrainingServer(uvicorn.Server):
    """Keeps answering /ready and running requests while the engine drains; a second signal ends it at once."""

    def __init__(self, config: uvicorn.Config, engine: Engine, drain_seconds: float) -> None:
        super().__init__(config)
        self.engine = engine
        self.drain_seconds = drain_seconds

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.engine.draining or sig == signal.SIGINT:
            super().handle_exit(sig, frame)
            return
        self.engine.drain()
        asyncio.get_event_loop().create_task(self._end_when_idle())

    async def _end_when_idle(self) -> None:
        end = asyncio.get_running_loop().time() + self.drain_seconds
        while not self.engine.idle and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.05)
        # Those whose time is over are told so, before their connections are closed.
        await asyncio.to_thread(self.engine.stop)
        self.should_exit = True


def serve(lm: DiffusionLM, config: Config) -> None:
    """Serve a model until a signal ends it."""
    engine = Engine(lm, config.limits)
    settings = uvicorn.Config(
        make_app(lm, engine, config),
        host=config.host,
        port=config.port,
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=5,
    )
    DrainingServer(settings, engine, config.limits.drain_seconds).run()
