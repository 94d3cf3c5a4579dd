"""Where and when tokens land: trajectories, heat maps and segment counts, from traces."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dapd.errors import DapdError
from dapd.plots.figure import WIDE, Grid, check_suffix, plain, sheet
from dapd.plots.palette import STEPS, colour, family, labels
from dapd.plots.soundness import check_traces
from dapd.trace import Trace

BINS = 100
"""Points of normalised progress at which curves are averaged."""
MOST_PANELS = 12


def trajectory(
    traces: Sequence[Trace], path: Path | None = None, until: float = 1.0, *, axes: Sequence[Any] | None = None
) -> None:
    """A panel per trace: positions across, progress down, each token in the colour of its step from then on."""
    check(traces, path, until)
    if len(traces) > MOST_PANELS:
        raise DapdError(f"{len(traces)} trajectories in one figure cannot be read; give at most {MOST_PANELS} traces")
    columns = 2 if len(traces) > 1 else 1
    lines = -(-len(traces) // columns)
    grid = Grid(len(traces), columns, (WIDE if columns > 1 else 4.6, 2.15 * lines + 0.35), sharey=True)
    with sheet(path, grid, axes) as drawing:
        image = None
        for axis, trace, label in zip(drawing.axes, traces, labels(traces), strict=True):
            steps = max(1, round(until * trace.nfe))
            born = births(trace)[None]
            shades = torch.where(born <= torch.arange(1, steps + 1)[:, None], born, torch.nan)
            image = axis.imshow(
                (shades - 1) / max(1, trace.nfe - 1),
                aspect="auto",
                interpolation="nearest",
                cmap=STEPS,
                vmin=0,
                vmax=until,
                extent=(0, len(trace.slots), 100 * steps / trace.nfe, 0),
            )
            axis.set_title(plain(f"{label} ({trace.nfe} passes)"))
            _frame(axis)
        drawing.outer_labels("token position", "progress (%)")
        drawing.bar(image, "decided at (share of passes)")


def heatmap(
    traces: Sequence[Trace], path: Path | None = None, until: float = 1.0, *, axes: Sequence[Any] | None = None
) -> None:
    """A panel per decoder: the share of samples in which a position is decided, over normalised progress."""
    check(traces, path, until)
    groups = by_family(traces)
    columns = min(2, len(groups))
    lines = -(-len(groups) // columns)
    size = (WIDE if columns > 1 else 4.6, 2.15 * lines + 0.4)
    with sheet(path, Grid(len(groups), columns, size, sharex=True, sharey=True), axes) as drawing:
        image = None
        for axis, (name, group) in zip(drawing.axes, groups.items(), strict=True):
            mean = torch.stack([decided(trace, until) for trace in _same_length(group)]).mean(0)
            image = axis.imshow(
                torch.where(mean > 0, mean, torch.nan),
                aspect="auto",
                interpolation="nearest",
                cmap=STEPS,
                vmin=0,
                vmax=1,
                extent=(0, mean.shape[1], 100 * until, 0),
            )
            axis.set_title(plain(f"{name} ({len(group)} sample{'s' * (len(group) > 1)})"), pad=13)
            _frame(axis)
            _questions(axis, group)
        drawing.outer_labels("token position", "progress (%)")
        drawing.bar(image, "share of samples decided")


def segments(traces: Sequence[Trace], path: Path | None = None, *, axes: Sequence[Any] | None = None) -> None:
    """Mean segment count with its spread, over forward passes and over normalised progress: two panels."""
    check(traces, path, 1.0)
    with sheet(path, Grid(2, 2, (WIDE, 2.7), sharey=True), axes) as drawing:
        passes, progress = drawing.axes
        for name, group in by_family(traces).items():
            counts = [torch.tensor([0.0, *(float(r.segments) for r in trace.steps)]) for trace in group]
            longest = max(len(count) for count in counts)
            held = torch.stack([torch.cat((c, c[-1:].expand(longest - len(c)))) for c in counts])
            _band(passes, torch.arange(longest), held, name, len(group))
            even = torch.stack([c[(torch.linspace(0, 1, BINS + 1) * (len(c) - 1)).long()] for c in counts])
            _band(progress, torch.linspace(0, 100, BINS + 1), even, name, len(group))
        passes.set_xlabel("forward passes")
        progress.set_xlabel("progress (%)")
        passes.set_ylabel("segments")
        for axis in drawing.axes:
            axis.grid(alpha=0.25, linewidth=0.5)
            axis.set_ylim(bottom=0)
            axis.margins(x=0.01)
        handles, names = passes.get_legend_handles_labels()
        drawing.legend(handles, names, "upper center", min(5, len(names)))


def births(trace: Trace) -> Float[Tensor, " slots"]:
    """The step that decided each slot; infinite for those that none did."""
    when = {p: record.step for record in trace.steps for p in (*record.positions, *record.tail)}
    return torch.tensor([when.get(position, torch.inf) for position in trace.slots])


def decided(trace: Trace, until: float = 1.0) -> Float[Tensor, "bins slots"]:
    """1 where a slot is decided, at points of progress from 0 to `until`."""
    passes = torch.linspace(0, until, BINS + 1)[1:] * trace.nfe
    return (births(trace)[None] <= passes.ceil()[:, None]).float()


def by_family(traces: Sequence[Trace]) -> dict[str, list[Trace]]:
    groups: dict[str, list[Trace]] = {}
    for trace in traces:
        groups.setdefault(family(trace), []).append(trace)
    return groups


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
        raise DapdError(f"samples of {lengths[0]} and {lengths[-1]} new tokens cannot be averaged position by position")
    return group


def _band(axis: Any, x: Tensor, values: Float[Tensor, "samples points"], name: str, n: int) -> None:
    """The mean and the middle 80% of the samples."""
    axis.plot(x, values.mean(0), color=colour(name), label=plain(name if n == 1 else f"{name} ({n})"))
    if n > 1:
        low, high = torch.quantile(values, torch.tensor([0.1, 0.9]), dim=0)
        axis.fill_between(x, low, high, color=colour(name), alpha=0.15, linewidth=0)


def _questions(axis: Any, group: Sequence[Trace]) -> None:
    """Lines where numbered answers begin, on average: [1], [2], ..."""
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


def _frame(axis: Any) -> None:
    for side in axis.spines.values():
        side.set_visible(True)
        side.set_color("#bbbbbb")
    axis.tick_params(length=2.5, color="#bbbbbb")
