"""One colour and one marker for each decoder, in every figure and on the viewer's page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

from dapd.settings import describe
from dapd.strategies import PRESETS
from dapd.trace import Trace

# Okabe and Ito's palette, which colour-blind readers can tell apart; DAPD gets the two strongest colours.
COLOURS = {
    "dapd-staged": "#D55E00",
    "dapd-direct": "#CC79A7",
    "fast-dllm": "#0072B2",
    "fast-dllm-factor": "#56B4E9",
    "eb-sampler": "#009E73",
    "klass": "#E69F00",
    "original": "#000000",
    "dawn": "#7F3C8D",
    "local-leap": "#3969AC",
    "control-shuffled": "#999999",
    "control-distance": "#666666",
    "control-confidence": "#B8860B",
    "dream": "#444444",
}
OWN = (
    "#332288", "#88CCEE", "#44AA99", "#117733", "#999933", "#CCB54A", "#CC6677", "#882255", "#AA4499", "#661100",
)  # fmt: skip
"""Colours for all other decoders, chosen by their names: Tol's muted ones, the sand a little darker."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "h", "p", "d")
STEPS = "viridis_r"
"""Colour map of the steps: light is early, as in the paper, and lightness changes evenly."""


def style(family: str) -> dict[str, Any]:
    """Colour and marker of a decoder."""
    place = list(COLOURS).index(family) if family in COLOURS else crc32(family.encode(errors="replace")) >> 16
    return {"color": colour(family), "marker": MARKERS[place % len(MARKERS)]}


def colour(family: str) -> str:
    """A decoder's colour. A user's own decoder gets it from its name, so that it is the same in every figure."""
    if family in COLOURS:
        return COLOURS[family]
    return OWN[crc32(family.encode(errors="replace")) % len(OWN)]


def family(trace: Trace) -> str:
    """The preset that a trace was made with, whatever its fields; the class's name where no preset fits."""
    said = trace.about.get("strategy")
    if not isinstance(said, Mapping) or "name" not in said:
        return "unknown decoder"
    near = {name: _matching_settings(describe(preset), said) for name, preset in PRESETS.items()}
    best = max(near, key=lambda name: near[name])
    return best if near[best] >= 0 else str(said["name"])


def _matching_settings(preset: Mapping[str, Any], said: Mapping[str, Any]) -> int:
    """Number of settings that agree; -1 where class, shortcut or order differ, which make another decoder."""
    if any(preset.get(key) != said.get(key) for key in ("name", "shortcut", "order")):
        return -1
    return sum(said.get(key) == value for key, value in preset.items())


def labels(traces: Sequence[Trace]) -> list[str]:
    """A name for each trace: its family, up to three settings in which traces of this family differ, and a number where
    the name would still occur twice."""
    families = [family(trace) for trace in traces]
    out = []
    for trace, name in zip(traces, families, strict=True):
        peers = [settings(t) for t, other in zip(traces, families, strict=True) if other == name]
        mine = settings(trace)
        odd = [k for k, value in mine.items() if value is not None and any(peer.get(k) != value for peer in peers)]
        out.append(" ".join([name, *(f"{key}={mine[key]}" for key in odd[:3])]))
    seen: dict[str, int] = {}
    for place, label in enumerate(out):
        seen[label] = seen.get(label, 0) + 1
        if out.count(label) > 1 or seen[label] > 1:
            out[place] = f"{label} ({seen[label]})"
    return out


def settings(trace: Trace) -> dict[str, Any]:
    """The settings of a trace: the model, the decoder's fields and the loop's options, without seed and sampling."""
    options = trace.about.get("options")
    loop = {k: v for k, v in options.items() if k not in ("seed", "sampling")} if isinstance(options, Mapping) else {}
    strategy = trace.about.get("strategy")
    own = {k: v for k, v in strategy.items() if k != "name"} if isinstance(strategy, Mapping) else {}
    return {"model": trace.about.get("model"), **own, **loop}
