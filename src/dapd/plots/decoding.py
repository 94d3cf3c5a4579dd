"""Where and when tokens land: trajectories, heat maps and segment counts, from traces."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dapd.errors import DapdError
from dapd.plots.axes import count_axes
from dapd.plots.figure import AS_IT_COMES, WIDE, Grid, Layout, check_suffix, plain, sheet
from dapd.plots.palette import STEPS, family, labels, settings, style
from dapd.plots.soundness import check_traces
from dapd.trace import Trace

BINS = 100
"""Points of normalised progress at which curves are averaged."""
MOST_PANELS = 12
DASHES = ("-", "--", ":", "-.")
WHEN = "decided at (% of passes)"
"""Label of the colours: how much of the decoding was done when the pass that decided a token began."""


def trajectory(
    traces: Sequence[Trace],
    path: Path | None = None,
    until: float = 1.0,
    *,
    layout: Layout = AS_IT_COMES,
    axes: Sequence[Any] | None = None,
) -> None:
    """A panel per trace: positions across, progress down, each token in the colour of its pass from then on."""
    check(traces, path, until)
    if len(traces) > MOST_PANELS:
        raise DapdError(f"{len(traces)} trajectories in one figure cannot be read; give at most {MOST_PANELS} traces")
    columns = 2 if len(traces) > 1 else 1
    lines = -(-len(traces) // columns)
    grid = Grid(len(traces), columns, (WIDE if columns > 1 else 4.6, 2.15 * lines + 0.35), sharey=True)
    with sheet(path, grid, axes, layout) as drawing:
        for axis, trace, label in zip(drawing.axes, traces, labels(traces), strict=True):
            steps = ceil(until * trace.nfe - 1e-9)  # 0.07 of 100 passes are 7, not 8
            image = _picture(axis, births(trace), torch.arange(steps) / trace.nfe, steps / trace.nfe, until)
            axis.set_title(plain(f"{label} ({trace.nfe} pass{'es' * (trace.nfe > 1)})"))
        drawing.outer_labels("token position", "progress (% of passes)")
        drawing.bar(image, WHEN)


def heatmap(
    traces: Sequence[Trace],
    path: Path | None = None,
    until: float = 1.0,
    *,
    layout: Layout = AS_IT_COMES,
    axes: Sequence[Any] | None = None,
) -> None:
    """A panel per decoder: the trajectory of the typical sample.

    A position is white until half of the samples have decided it, and from then on has the colour of that moment: light
    is early, as in the paper.
    """
    check(traces, path, until)
    groups = by_decoder(traces)
    columns = min(2, len(groups))
    lines = -(-len(groups) // columns)
    size = (WIDE if columns > 1 else 4.6, 2.15 * lines + 0.4)
    with sheet(path, Grid(len(groups), columns, size, sharex=True, sharey=True), axes, layout) as drawing:
        for axis, (name, group) in zip(drawing.axes, groups.items(), strict=True):
            typical = torch.stack([births(trace) for trace in _same_length(group)]).median(0).values
            image = _picture(axis, typical, torch.linspace(0, until, BINS + 1)[:-1], until, until)
            axis.set_title(plain(f"{name} ({len(group)} sample{'s' * (len(group) > 1)})"), pad=13)
            _questions(axis, group)
        drawing.outer_labels("token position", "progress (% of passes)")
        drawing.bar(image, WHEN if len(traces) == len(groups) else "half of the samples decided it at (% of passes)")


def segments(
    traces: Sequence[Trace],
    path: Path | None = None,
    *,
    layout: Layout = AS_IT_COMES,
    axes: Sequence[Any] | None = None,
) -> None:
    """Mean segment count with its spread, over forward passes and over normalised progress: two panels."""
    check(traces, path, 1.0)
    with sheet(path, Grid(2, 2, (WIDE, 2.9), sharey=True), axes, layout) as drawing:
        passes, progress = drawing.axes
        groups = by_decoder(traces)
        for (name, group), look in zip(groups.items(), looks(list(groups.values())), strict=True):
            counts = [torch.tensor([0.0, *(float(r.segments) for r in trace.steps)]) for trace in group]
            longest = max(len(count) for count in counts)
            held = torch.stack([torch.cat((c, c[-1:].expand(longest - len(c)))) for c in counts])
            _band(passes, torch.arange(longest), held, name, look)
            even = torch.stack([c[(torch.linspace(0, 1, BINS + 1) * (len(c) - 1)).long()] for c in counts])
            _band(progress, torch.linspace(0, 100, BINS + 1), even, name, look)
        passes.set_xlabel("forward passes")
        progress.set_xlabel("progress (% of passes)")
        passes.set_ylabel("segments (count)")
        for axis in drawing.axes:
            count_axes(axis)
        progress.set_xlim(right=100)
        drawing.legend(passes)


def births(trace: Trace) -> Float[Tensor, " slots"]:
    """The share of the decoding that was done when the pass that decided a slot began; infinite for undecided slots.

    The first pass begins at 0 and the last of four at 0.75, which is where a picture of progress shows its tokens.
    """
    when = {p: record.step for record in trace.steps for p in (*record.positions, *record.tail)}
    return torch.tensor([(when.get(position, torch.inf) - 1) / trace.nfe for position in trace.slots])


def unmasked(born: Float[Tensor, " slots"], points: Float[Tensor, " points"]) -> Float[Tensor, "points slots"]:
    """A row of `born` for each point of progress, with nan for the slots that are not decided at that point."""
    return torch.where(born[None] <= points[:, None], born[None], torch.nan)


def _picture(axis: Any, born: Tensor, points: Tensor, end: float, until: float) -> Any:
    """Draw the slots across and progress down to `end`. The axis and the colours reach to `until`, so that panels can
    share them; what lies beyond it is cut off."""
    for side in axis.spines.values():
        side.set_visible(True)
        side.set_color("#bbbbbb")
    axis.tick_params(length=2.5, color="#bbbbbb")
    axis.grid(visible=False)
    image = axis.imshow(
        100 * unmasked(born, points),
        aspect="auto",
        interpolation="nearest",
        cmap=STEPS,
        vmin=0,
        vmax=100 * until,
        extent=(0, len(born), 100 * end, 0),
    )
    axis.set_ylim(100 * until, 0)
    return image


def by_decoder(traces: Sequence[Trace]) -> dict[str, list[Trace]]:
    """The traces of each decoder and setting, keyed by its name and the settings in which it differs from others."""
    groups: dict[str, list[Trace]] = {}
    for trace in traces:
        groups.setdefault(repr(settings(trace)), []).append(trace)
    return dict(zip(labels([group[0] for group in groups.values()]), groups.values(), strict=True))


def looks(groups: Sequence[Sequence[Trace]]) -> Iterator[dict[str, Any]]:
    """The look of each group's line: its decoder's colour, with other dashes for each further setting of it."""
    families = [family(group[0]) for group in groups]
    for place, name in enumerate(families):
        yield {**style(name), "linestyle": DASHES[families[:place].count(name) % len(DASHES)]}


def check(traces: Sequence[Trace], path: Path | None, until: float) -> None:
    if path is not None:
        check_suffix(path)
    if not 0 < until <= 1:
        raise DapdError(f"--until is {until}; it is a share of the decoding, above 0 and at most 1")
    if not traces:
        raise DapdError("there are no traces to draw")
    check_traces(traces)


def _same_length(group: Sequence[Trace]) -> Sequence[Trace]:
    lengths = sorted({len(trace.slots) for trace in group})
    if len(lengths) > 1:
        raise DapdError(
            f"samples of {lengths[0]} and {lengths[-1]} new tokens cannot be averaged position by position; give "
            "traces of equal length"
        )
    return group


def _band(axis: Any, x: Tensor, values: Float[Tensor, "samples points"], name: str, look: Mapping[str, Any]) -> None:
    """Draw the mean of the samples as a line, and their middle 80% as a band."""
    n = len(values)
    now_and_then = max(1, len(x) // 8)
    marks = {"markersize": 4.5, "markevery": (now_and_then, now_and_then)}
    axis.plot(x, values.mean(0), label=plain(name if n == 1 else f"{name} ({n} samples)"), **look, **marks)
    if n > 1:
        low, high = torch.quantile(values, torch.tensor([0.1, 0.9]), dim=0)
        axis.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)


def _questions(axis: Any, group: Sequence[Trace]) -> None:
    """Draw lines at the mean places where the numbered answers [1], [2], ... begin."""
    starts: dict[str, list[int]] = {}
    for trace in group:
        where = {position: place for place, position in enumerate(trace.slots)}
        for record in trace.steps:
            for position, text in zip(record.positions, record.texts or [], strict=False):
                if re.fullmatch(r"\s*\[\d\]\s*", text):
                    starts.setdefault(text.strip(), []).append(where[position])
    for name, places in sorted(starts.items()):
        if len(places) >= len(group) / 2:
            at = sum(places) / len(places)
            axis.axvline(at, color="#D55E00", lw=1, alpha=0.8)
            above = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "ha": "center"}
            axis.annotate(name, (at, 1), (0, 2), fontsize=6.5, color="#8a3d00", **above)
