"""The page at /: the viewer, live. Its files are read once; no path of a request is ever opened."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Response

from dapd import viewer
from dapd.generation import DiffusionLM
from dapd.lab.tasks import TASKS
from dapd.lab.tasks.rooms import is_of_the_lab
from dapd.server.config import Limits
from dapd.settings import DEFAULT_STRATEGY
from dapd.strategies import PRESETS

EXAMPLES = ("quiz", "story", "record")
"""Tasks whose prompts the page offers for the lab model: its vocabulary is closed, so a visitor needs examples."""
KINDS = {"js": "text/javascript", "css": "text/css", "html": "text/html"}
TRACES = "@@TRACES@@"
"""Marks the place in the saved page at which the live page's script inserts the decodings."""


def add_page(app: FastAPI, lm: DiffusionLM, limits: Limits) -> None:
    """Serve the page and the files that it is made of."""
    static = _static()
    about: dict[str, Any] = {
        "model": lm.name,
        "chat": lm.tokenizer.has_chat,
        "strategies": [DEFAULT_STRATEGY, *(name for name in PRESETS if name != DEFAULT_STRATEGY)],
        "longest": min(limits.new_tokens, lm.network.max_length),
        "examples": {name: TASKS[name].examples(1, 0)[0].prompt for name in EXAMPLES if is_of_the_lab(lm)},
    }

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return static["live.html"]

    @app.get("/static/{name}", include_in_schema=False)
    async def file(name: str) -> Response:
        return static.get(name) or Response(status_code=404)

    @app.get("/page.json", include_in_schema=False)
    async def page_json() -> dict[str, Any]:
        return about

    @app.get("/favicon.ico", include_in_schema=False)
    async def icon() -> Response:
        return Response(status_code=204)


def _static() -> dict[str, Response]:
    """Every file of the page by its name."""
    own = files("dapd.server") / "static"
    texts = {name: (own / name).read_text(encoding="utf-8") for name in ("live.html", "live.js", "live.css")}
    texts |= {f"{name}.js": viewer.read(f"{name}.js") for name in viewer.MODULES}
    texts["viewer.css"] = viewer.read("viewer.css")
    texts["saved.html"] = viewer.shell("Decoding", TRACES)
    return {
        name: Response(text, media_type=KINDS[name.rpartition(".")[2]], headers={"Cache-Control": "no-cache"})
        for name, text in texts.items()
    }
