"""The HTTP front: OpenAI's paths, infilling, and what an operator needs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from dapd.errors import DapdError
from dapd.forms.building import give_up
from dapd.generation import DiffusionLM
from dapd.server import mistakes
from dapd.server.answers import Answers, Kind
from dapd.server.config import Config
from dapd.server.engine import ClosedError, Engine
from dapd.server.guard import Guard
from dapd.server.jobs import Failed, Finished
from dapd.server.page import add_page
from dapd.server.planning import Plan, Planner
from dapd.server.streams import EventStream, watching
from dapd.server.tickets import Ticket
from dapd.server.wire import Answering, ChatRequest, CompletionRequest, InfillRequest
from dapd.server.wire import Request as Asked

Body = TypeVar("Body", bound=Asked)
CLOSED = "the server is shutting down"
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"description": words}
    for status, words in {
        400: "A mistake in the request; `param` names the field",
        401: "No API key, or a wrong one",
        403: "The Host or the Origin header is not allowed",
        404: "No such model",
        408: "The body did not arrive in time",
        413: "The body is too large",
        429: "The queue is full; Retry-After says when to come back",
        500: "An internal error",
        503: "The server is shutting down",
        504: "The request took longer than its time limit",
    }.items()
}


class Front:
    """Answers requests with one engine."""

    def __init__(self, lm: DiffusionLM, engine: Engine, config: Config) -> None:
        self.lm = lm
        self.engine = engine
        self.config = config
        self.planner = Planner(lm, config.limits)
        self.readers = ThreadPoolExecutor(2, "dapd-reader")
        """Threads that read prompts, so that a long one does not hold up the event loop."""
        self.builders = ThreadPoolExecutor(2, "dapd-builder")
        """Threads for requests with a form: building one may take seconds, and other requests do not wait for it. A
        second one, so that a form which takes its whole minute does not hold up all other forms."""
        self.turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Requests with one form take turns, so that they occupy one of these threads, whoever gives up waiting."""
        self.closed = False

    def close(self) -> None:
        """Stop the threads that read requests. Requests that are not read yet, or wait for their form, are refused."""
        self.closed = True
        give_up()
        for pool in (self.readers, self.builders):
            pool.shutdown(wait=False)

    def _read(self, read: Callable[[Body], Plan], body: Body) -> Plan:
        try:
            if not self.closed:
                return read(body)
        except DapdError:
            if not self.closed:
                raise
        raise ClosedError(CLOSED)

    async def _read_in_turn(self, form: str, read: Callable[[Body], Plan], body: Body) -> Plan:
        """Read a request when no other one with its form is being read."""
        turn = self.turns.setdefault(form, asyncio.Lock())
        loop = asyncio.get_running_loop()

        def end(_: object) -> None:
            with suppress(RuntimeError):  # the loop is closed: the server has ended
                loop.call_soon_threadsafe(turn.release)

        await turn.acquire()
        if self.closed:
            turn.release()
            raise ClosedError(CLOSED)
        reading = self.builders.submit(self._read, read, body)
        reading.add_done_callback(end)  # a thread goes on even if nobody waits for it any more
        return await asyncio.wrap_future(reading)

    async def serve(self, kind: Kind, body: Body, read: Callable[[Body], Plan], request: Request) -> Response:
        if not self.engine.ready:
            raise ClosedError(CLOSED)
        form = body.form if isinstance(body, Answering) else None
        self.planner.check_model(body)
        seconds = self.planner.seconds(body)
        deadline = time.monotonic() + seconds
        reading: asyncio.Future[Plan]
        if form is None:
            reading = asyncio.wrap_future(self.readers.submit(self._read, read, body))
        else:
            reading = asyncio.ensure_future(self._read_in_turn(form, read, body))
        try:
            async with watching(request.receive, reading.cancel), asyncio.timeout(None if form is None else seconds):
                plan = await reading
        except TimeoutError:
            return mistakes.answer(*mistakes.FAULTS["timeout"])
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():  # the server is shutting down
                raise
            return mistakes.answer(*mistakes.FAULTS["gone"])
        ticket = Ticket(self.engine, self.lm, plan, deadline)
        answers = Answers(kind, self.lm, plan, _n_top(body))
        if body.stream:
            with_usage = body.stream_options is not None and body.stream_options.include_usage
            return EventStream(ticket, answers, with_usage=with_usage, write_seconds=self.config.limits.write_seconds)
        done: list[Finished] = []
        async with watching(request.receive, ticket.cancel):
            async for event in ticket.events():
                if isinstance(event, Failed):
                    return mistakes.answer(*mistakes.FAULTS[event.reason])
                if isinstance(event, Finished):
                    done.append(event)
        return JSONResponse(answers.whole(done))


def _n_top(body: Asked) -> int:
    if isinstance(body, ChatRequest):
        return (body.top_logprobs or 0) if body.logprobs else -1
    logprobs = getattr(body, "logprobs", None)
    return -1 if logprobs is None else int(logprobs)


def make_app(lm: DiffusionLM, engine: Engine, config: Config) -> FastAPI:
    """The application around an engine, which it starts and ends. The model is renamed to the name that clients use."""
    lm.name = config.public_name(lm.name)
    front = Front(lm, engine, config)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        engine.start()
        yield
        await asyncio.to_thread(engine.stop)
        front.close()

    # A path with a slash too many is an error: behind a proxy the framework's redirection would name the wrong server.
    app = FastAPI(
        title="dapd", version=_version(), lifespan=lifespan, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    app.add_middleware(Guard, config=config, metrics=engine.metrics)
    if config.origins:
        # Outside of the guard: a browser asks whether a page may send a key, and sends none with that question.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            allow_private_network=True,  # browsers ask for it where a page of the web calls a server on loopback
            expose_headers=("X-Request-ID", "Retry-After"),
        )
    app.state.close = front.close
    app.add_exception_handler(RequestValidationError, mistakes.on_validation)
    app.add_exception_handler(DapdError, mistakes.on_mistake)
    app.add_exception_handler(HTTPException, mistakes.on_http)
    _add_texts(app, front)
    _add_operations(app, lm, engine)
    add_page(app, lm, config.limits)
    return app


def _add_texts(app: FastAPI, front: Front) -> None:
    planner = front.planner

    @app.post("/v1/chat/completions", responses=REFUSALS)
    async def chat(body: ChatRequest, request: Request) -> Response:
        """Answer a conversation."""
        return await front.serve("chat", body, planner.chat, request)

    @app.post("/v1/completions", responses=REFUSALS)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Continue one text or several."""
        return await front.serve("completion", body, planner.completion, request)

    @app.post("/v1/infill", responses=REFUSALS)
    async def infill(body: InfillRequest, request: Request) -> Response:
        """Fill the masks of a text."""
        return await front.serve("infill", body, planner.infill, request)


def _add_operations(app: FastAPI, lm: DiffusionLM, engine: Engine) -> None:
    about = {"id": lm.name, "object": "model", "created": 0, "owned_by": "dapd"}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The one model of this server."""
        return {"object": "list", "data": [about]}

    @app.get("/v1/models/{name:path}", responses={404: REFUSALS[404]})
    async def model(name: str) -> dict[str, Any]:
        if name != lm.name:
            raise mistakes.MistakeError("model", "there is no such model", 404, "model_not_found")
        return about

    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    async def health() -> dict[str, str]:
        """Whether the process is alive."""
        return {"status": "ok"}

    @app.head("/ready", include_in_schema=False)
    @app.get("/ready", responses={503: REFUSALS[503]})
    async def ready() -> Response:
        """Whether new requests are taken."""
        return JSONResponse({"ready": engine.ready}, 200 if engine.ready else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        """Counters for Prometheus."""
        return Response(generate_latest(engine.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/version")
    async def version_() -> dict[str, str]:
        return {"version": _version(), "model": lm.name}


def _version() -> str:
    try:
        return version("dapd")
    except PackageNotFoundError:
        return "unknown"
