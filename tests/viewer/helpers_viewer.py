"""Hand-made and large traces, and what tests want of a browser."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from dapd.trace import Record, Trace


def made(texts: list[list[str]], *, prompt: str = "ask", **about: Any) -> Trace:
    """A hand-made trace: the n-th list of texts is committed in pass n, left to right."""
    n = sum(map(len, texts))
    trace = Trace([1] * 2 + [9] * n, list(range(2, 2 + n)), 9, 8, 2, about={"prompt": prompt, **about})
    at = 2
    for number, said in enumerate(texts, 1):
        positions = list(range(at, at + len(said)))
        at += len(said)
        trace.steps.append(
            Record(number, positions, [5] * len(said), [0.5] * len(said), n + 2 - at, 1, 0.1, texts=said)
        )
    return trace


def big(n: int = 1024, steps: int = 256, seed: int = 0) -> Trace:
    """As large as the page must bear, with a dense graph at every step."""
    rng = random.Random(seed)
    order = rng.sample(range(10, 10 + n), n)
    about = {"prompt": "long " * 50, "strategy": {"name": "Dapd", "shortcut": "staged", "order": "degree"}}
    trace = Trace([1] * 10 + [9] * n, list(range(10, 10 + n)), 9, 8, 10, about=about)
    left, each = set(order), n // steps
    for number in range(steps):
        positions = sorted(order[number * each : (number + 1) * each])
        edges = [[i, j] for j in positions for i in left if rng.random() < 0.5]
        left.difference_update(positions)
        held = [[p, round(rng.random(), 3)] for p in sorted(left)]
        texts = [rng.choice([" word", " the", ",", " answer", ".\n"]) for _ in positions]
        confidences = [rng.random() for _ in positions]
        record = Record(number + 1, positions, [5] * each, confidences, len(left), 40, 0.1, [], texts, edges, held)
        trace.steps.append(record)
    return trace


class Browser:
    """Chromium on pages from disk, with what it logged and asked of the network."""

    def __init__(self, driver: Any, folder: Path) -> None:
        self.driver, self.folder = driver, folder

    def open(self, address: str | Path) -> None:
        self.driver.get(address.as_uri() if isinstance(address, Path) else address)

    def js(self, code: str, *args: Any) -> Any:
        return self.driver.execute_script(code, *args)

    def media(self, **features: str) -> None:
        told = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": told})

    def width(self, width: int) -> None:
        size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def complaints(self) -> list[Any]:
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Addresses asked for since the last call."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]

    def shown(self, lane: int = 0) -> dict[int, str | None]:
        """Position -> the text in a lane, None where it is masked."""
        spans = self.js(
            "return [...dapdViewer.lanes[arguments[0]].panel.spans]"
            ".map(([p, s]) => [p, s.classList.contains('m') ? null : s.textContent])",
            lane,
        )
        return dict(spans)
