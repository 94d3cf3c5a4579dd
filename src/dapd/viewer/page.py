"""The page: front end and traces in one HTML file that loads nothing from the network."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from dapd.errors import DapdError
from dapd.io.files import write_bytes
from dapd.plots.palette import colour, family, labels
from dapd.plots.soundness import check_traces
from dapd.trace import Trace
from dapd.viewer.compact import compact, head

MODULES = (
    *("dom", "colour", "clock", "address", "decoding", "text", "graph", "charts", "lane", "facts", "picture"),
    *("controls", "viewer"),
)
"""The front end's modules, each after those that it imports."""
MOST = 8
"""Traces side by side; more of them could not be read."""
BOOT = """
const page = JSON.parse(document.getElementById("traces").textContent);
globalThis.dapdViewer = mount(document.querySelector("main"), page);
"""


def write_page(path: str | Path, traces: Sequence[Trace], title: str | None = None) -> None:
    """Write traces as one self-contained page that plays them side by side."""
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise DapdError(f"{path}: the page is written as .html")
    write_bytes(path, render(traces, title).encode("utf-8", "replace"))


def render(traces: Sequence[Trace], title: str | None = None) -> str:
    """The page as text."""
    _check(traces)
    named = labels(traces)
    shown = title or " beside ".join(dict.fromkeys(named))
    content = {"title": shown, "traces": [_labelled(t, label) for t, label in zip(traces, named, strict=True)]}
    return shell(shown, embedded(content))


def shell(title: str, content: str) -> str:
    """The page around `content`, which must be safe inside of a script element, as JSON from `embedded` is."""
    script = bundle() + BOOT
    css = read("viewer.css")
    # Nothing is fetched, and no script runs but this one, whatever stands in the text.
    policy = f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(css)}'; base-uri 'none'"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{html.escape(title)}</title>
<style>{css}</style>
</head>
<body>
<main><noscript>This page plays a decoding; it needs JavaScript, which is part of the file.</noscript></main>
<script type="application/json" id="traces">{content}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def embedded(content: Any) -> str:
    """Content as JSON that cannot end the element around it: `<` and `>` are escaped, so that no text begins a tag."""
    text = json.dumps(content, separators=(",", ":"), default=str, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e")


def spoken(value: Any) -> Any:
    """A value of a trace's `about` as a browser reads it: JSON has no nan and no infinity, so words stand for them."""
    if isinstance(value, float) and not math.isfinite(value):
        return "not a number" if math.isnan(value) else f"{'-' * (value < 0)}infinite"
    if isinstance(value, dict):
        return {str(key): spoken(part) for key, part in value.items()}
    return [spoken(part) for part in value] if isinstance(value, list | tuple) else value


def bundle() -> str:
    """The modules as one script. Their imports and exports are removed, which is possible because no names clash."""
    parts = [re.sub(r"^import .*?;\n", "", read(f"{name}.js"), flags=re.M) for name in MODULES]
    return "".join(re.sub(r"^export (?=class|const|function)", "", part, flags=re.M) for part in parts)


def read(name: str) -> str:
    """A file of the front end."""
    return (files("dapd.viewer") / "static" / name).read_text(encoding="utf-8")


def _labelled(trace: Trace, label: str) -> dict[str, Any]:
    return {"head": head_of(trace, label), "records": compact(trace)["records"]}


def head_of(trace: Trace, label: str) -> dict[str, Any]:
    """The part of a trace that the page needs before its first record."""
    about = spoken(trace.about)
    if about.get("prompt") is not None:
        about["prompt"] = str(about["prompt"])
    return {**head(trace), "label": label, "colour": colour(family(trace)), "about": about}


def _check(traces: Sequence[Trace]) -> None:
    if not traces:
        raise DapdError("there are no traces to show")
    if len(traces) > MOST:
        raise DapdError(f"{len(traces)} traces are too many for a page; show at most {MOST} (--row picks one per file)")
    check_traces(traces)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
