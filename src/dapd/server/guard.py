"""Checks before a request reaches its handler (who may ask, from where, how much), and the headers of every answer.

This is plain ASGI, because it must count the bytes of a body while they are read.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dapd.server.config import LOOPBACK, Config
from dapd.server.metrics import Metrics
from dapd.server.mistakes import FAULTS, answer

logger = logging.getLogger("dapd.server")

OPEN = ("/", "/health", "/ready", "/favicon.ico")
"""Paths that need no key; those under /static/, the page's own code, need none either."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard:
    """Checks host, origin, key and size of every request, and counts the answers."""

    def __init__(self, app: ASGIApp, config: Config, metrics: Metrics) -> None:
        self.app = app
        self.config = config
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        headers = Headers(scope=scope)
        asked = headers.get("x-request-id", "")
        own = {**HEADERS, "X-Request-ID": asked if re.fullmatch(r"[\w.-]{1,64}", asked, re.A) else uuid.uuid4().hex}

        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                MutableHeaders(scope=message).update(own)
                # Unknown paths share one label: a client could make up any number of them.
                route = scope.get("route")
                self.metrics.requests.labels(getattr(route, "path", "other"), str(message["status"])).inc()
            await send(message)

        refusal = self._refusal(scope["path"], headers)
        if refusal is not None:
            await answer(*refusal)(scope, receive, sending)
            return
        try:
            await self.app(scope, self._limited(receive), sending)
        except asyncio.CancelledError:  # the server is shutting down, and the time that this request had is over
            if not begun:
                await answer(*FAULTS["closed"])(scope, receive, sending)
        except Exception:
            if begun:
                raise
            # Answered here: the answer of the framework would lack these headers and would not be counted.
            logger.exception("a request could not be answered")
            await answer(*FAULTS["fault"])(scope, receive, sending)

    def _refusal(self, path: str, headers: Headers) -> tuple[int, str] | None:
        """Why a request is refused, as a status and a sentence; None: it is not."""
        host = _split(f"//{headers.get('host', '')}").hostname
        # A page of another site may have its own name lead to this machine (DNS rebinding): the Host header shows it.
        if self.config.is_local and host not in LOOPBACK:
            return 403, "this server answers only requests to localhost, 127.0.0.1 or [::1]"
        origin = headers.get("origin")
        if origin is not None and origin not in self.config.origins and _split(origin).netloc != headers.get("host"):
            return 403, "pages of this origin may not use this server; its operator can allow them with --origin"
        if path not in OPEN and not path.startswith("/static/") and self.config.keys:
            scheme, _, key = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or key.strip() not in self.config.keys:
                return 401, "give an API key: Authorization: Bearer KEY"
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length[:20]) > self.config.limits.body_bytes:
            return 413, f"the body may have at most {self.config.limits.body_bytes} bytes"
        return None

    def _limited(self, receive: Receive) -> Receive:
        """`receive` with limits on the bytes of the body and on the time in which all of it must arrive."""
        limits = self.config.limits
        read = 0
        whole = False
        deadline = time.monotonic() + limits.body_seconds

        async def receiving() -> Message:
            nonlocal read, whole
            if whole:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), deadline - time.monotonic())
            except TimeoutError:
                raise HTTPException(408, "the body did not arrive in time") from None
            read += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if read > limits.body_bytes:
                raise HTTPException(413, f"the body may have at most {limits.body_bytes} bytes")
            return message

        return receiving


def _split(address: str) -> SplitResult:
    """The parts of an address; all are empty if it cannot be read, as where a bracket is not closed."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")
