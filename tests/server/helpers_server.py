"""A real server in a thread, clients for it, and models that are slow or break."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import uvicorn

from dapd.generation import DiffusionLM
from dapd.models import Prediction
from dapd.server import Config, Engine, Limits, make_app
from dapd.server.connection import Connection

PROMPT = "hello"


class Served:
    """A model behind a real socket."""

    def __init__(self, lm: DiffusionLM, config: Config | None = None, **limits: Any) -> None:
        self.lm = lm
        self.config = config or Config(limits=Limits(**limits))
        self.engine = Engine(lm, self.config.limits)
        app = make_app(lm, self.engine, self.config)
        self.app = app
        settings = uvicorn.Config(app, port=0, http=Connection, log_level="critical", timeout_graceful_shutdown=2)
        self.uvicorn = uvicorn.Server(settings)
        self.thread = threading.Thread(target=self.uvicorn.run, daemon=True)

    def __enter__(self) -> Served:
        self.thread.start()
        until(lambda: self.uvicorn.started)
        port = self.uvicorn.servers[0].sockets[0].getsockname()[1]
        self.base = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.base, timeout=60)
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()
        self.uvicorn.should_exit = True
        self.thread.join(20)
        assert not self.thread.is_alive()
        assert not self.engine.thread.is_alive()

    def ask(self, path: str = "completions", **fields: Any) -> httpx.Response:
        return self.http.post(f"/v1/{path}", json=self.body(path, fields))

    def body(self, path: str, fields: dict[str, Any]) -> dict[str, Any]:
        prompt = {"completions": {"prompt": PROMPT, "max_tokens": 16}}.get(path, {})
        return {"model": self.lm.name, **prompt, **fields}

    def chunks(self, path: str = "completions", **fields: Any) -> list[dict[str, Any]]:
        """The chunks of a stream; its last line must say that it is done."""
        with self.http.stream("POST", f"/v1/{path}", json={**self.body(path, fields), "stream": True}) as response:
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            found = list(events(response.iter_lines()))
        assert found[-1] == "[DONE]"
        return [json.loads(event) for event in found[:-1]]

    def metric(self, name: str) -> float:
        for line in self.http.get("/metrics").text.splitlines():
            if line.startswith((name + " ", name + "{")):
                return float(line.rpartition(" ")[2])
        return 0.0


def events(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        if line.startswith("data: "):
            yield line.removeprefix("data: ")
        else:
            assert line == "" or line.startswith(":"), line


def until(check: Callable[[], object], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.01)


class Wrapped:
    """A network that does something before each pass."""

    def __init__(self, inner: Any, before: Callable[[Any], None]) -> None:
        self.inner, self.before, self.calls = inner, before, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __call__(self, tokens: Any, *args: Any, **kwargs: Any) -> Prediction:
        self.calls += 1
        self.before(tokens)
        return self.inner(tokens, *args, **kwargs)


def slow(lm: DiffusionLM, seconds: float = 0.05) -> DiffusionLM:
    """The same model, so slow that one can watch it."""
    return DiffusionLM(Wrapped(lm.network, lambda _: time.sleep(seconds)), lm.tokenizer, name=lm.name)  # type: ignore[arg-type]


def breaking(lm: DiffusionLM, on: str) -> DiffusionLM:
    """The same model, which raises in the middle of a batch that holds this prompt."""
    wanted = list(on.encode())

    def check(tokens: Any) -> None:
        for row in tokens.tolist():
            text = bytes(i for i in row if i < 256)
            if bytes(wanted) in text:
                raise RuntimeError("secret: /a/path of the machine")

    return DiffusionLM(Wrapped(lm.network, check), lm.tokenizer, name=lm.name)  # type: ignore[arg-type]
