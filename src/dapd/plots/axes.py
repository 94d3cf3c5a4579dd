"""Axes that end where the quantity does, ticks that all have numbers, and marks that do not hide each other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

NEAR = 2.5
"""Distance in points on paper within which two marks count as being in one place."""
SIZE = 26.0
"""Area of a mark, in square points."""
MOST_RINGS = 4
TITLE_PAD = 9
"""Points between a panel and its title, so that marks at the upper edge do not reach it."""
LEAST_PERCENT = 10.0
"""Percentage points that an axis shows at least, so that noise does not look like a difference."""
STEPS = ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0))
"""Numbers that a logarithmic axis may carry in each power of ten, from coarse to fine."""


@dataclass(frozen=True)
class Mark:
    """One result in a picture: its place, and the colour and marker of its decoder."""

    x: float
    y: float
    look: dict[str, Any]
    name: str


def draw_marks(axis: Any, marks: Sequence[Mark]) -> None:
    """Draw the marks on an axis that already has its limits. Where several decoders meet, one mark is filled and the
    others are rings around it.

    Marks at the edge of the axis (a score of 100%) are drawn whole.
    """
    scale = 72 / axis.figure.dpi
    drawn: list[tuple[float, float, str]] = []
    for mark in marks:
        x, y = scale * axis.transData.transform((mark.x, mark.y))
        inside = len({name for a, b, name in drawn if name != mark.name and math.hypot(x - a, y - b) < NEAR})
        _draw(axis, [mark.x], [mark.y], mark.look, min(inside, MOST_RINGS))
        drawn.append((x, y, mark.name))
    for name, look in {mark.name: mark.look for mark in marks}.items():
        _draw(axis, [], [], look, label=name)


def _draw(axis: Any, x: list[float], y: list[float], look: dict[str, Any], inside: int = 0, **more: Any) -> None:
    """Draw a filled mark, or a ring around as many other marks as `inside` says."""
    size = SIZE * (1 + 0.8 * inside) * (2 if look["marker"] == "*" else 1)  # a star's area is mostly its points
    fill = {"facecolors": "none", "linewidths": 1} if inside else {"facecolors": look["color"], "linewidths": 0}
    look = {"marker": look["marker"], "edgecolors": look["color"], "clip_on": False, "zorder": 4 - 0.01 * inside}
    axis.scatter(x, y, s=size, **look, **fill, **more)


def percent_limits(values: Iterable[float]) -> tuple[float, float]:
    """Limits for shares in percent: room around the values, never below 0 nor above 100."""
    low, high = min(values := list(values)), max(values)
    room = max(0.06 * (high - low), (LEAST_PERCENT - (high - low)) / 2, 0)
    low, high = low - room, high + room
    if high > 100:
        low, high = min(low, 100 - LEAST_PERCENT), 100
    return max(0.0, low), max(high, LEAST_PERCENT)


def count_axes(axis: Any) -> None:
    """Number both axes with whole numbers from 0 on, because there are no half passes."""
    from matplotlib.ticker import MaxNLocator

    for one in (axis.xaxis, axis.yaxis):
        one.set_major_locator(MaxNLocator("auto", steps=(1, 2, 5, 10), integer=True))
    axis.set_xlim(left=0)
    axis.set_ylim(bottom=0)


def log_axis(axis: Any, low: float, high: float) -> None:
    """Make the x axis logarithmic, from below `low` to above `high`, with three to seven ticks, every one numbered."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

    room = 0.06 * math.log10(high / low) or 0.1
    low, high = low / 10**room, high * 10**room
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [[step * 10.0**power for power in powers for step in steps] for steps in STEPS]
    inside = [[tick for tick in ticks if low <= tick <= high] for ticks in found]
    fine = next((ticks for ticks in inside if len(ticks) >= 3), MaxNLocator(4).tick_values(low, high))
    axis.set_xscale("log")
    axis.set_xlim(low, high)
    axis.xaxis.set_major_locator(FixedLocator(fine))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
