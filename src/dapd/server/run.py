"""A server from its start to its end: on SIGTERM it takes no more requests and finishes those that are running."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from socket import socket
from types import FrameType

import uvicorn

from dapd.generation import DiffusionLM
from dapd.server.app import make_app
from dapd.server.config import Config
from dapd.server.connection import Connection
from dapd.server.engine import Engine

CONNECTIONS = 1024


class DrainingServer(uvicorn.Server):
    """Keeps answering /ready and running requests while the engine drains. Ctrl-C, or a second signal, gives running
    requests no more time, and one more signal ends the server without answering them."""

    def __init__(
        self,
        config: uvicorn.Config,
        engine: Engine,
        drain_seconds: float,
        listening: Callable[[int], None],
        close: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self.engine = engine
        self.patience = drain_seconds
        self.listening = listening
        """Called with the port as soon as clients are answered."""
        self.close_front = close
        """Called when requests that are still being read are to be refused."""

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.listening(self.servers[0].sockets[0].getsockname()[1])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig == signal.SIGINT or self.engine.draining:
            if not self.patience:
                super().handle_exit(sig, frame)
            self.patience = 0.0
        if not self.engine.draining:
            self.engine.drain()
            asyncio.get_event_loop().create_task(self._end_when_idle())

    async def _end_when_idle(self) -> None:
        began = asyncio.get_running_loop().time()
        while not self.engine.idle and asyncio.get_running_loop().time() < began + self.patience:
            await asyncio.sleep(0.05)
        # Requests that are not finished get an error before their connections are closed.
        await asyncio.to_thread(self.engine.stop)
        self.close_front()
        self.should_exit = True


def serve(lm: DiffusionLM, config: Config, tell: Callable[[str], None] = lambda text: None) -> None:
    """Serve a model until a signal ends it; `tell` is called with its address as soon as it answers."""
    engine = Engine(lm, config.limits)
    app = make_app(lm, engine, config)
    settings = uvicorn.Config(
        app,
        host=config.host,
        port=config.port,
        http=Connection,
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=5,
    )

    def listening(port: int) -> None:
        tell(f"{lm.name} on {lm.network.device}, at {config.url(port)} (Ctrl-C ends it)")

    DrainingServer(settings, engine, config.limits.drain_seconds, listening, app.state.close).run()
