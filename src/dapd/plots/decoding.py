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
from dapd.plots.figure import WIDE, check_suffix, pyplot, save
from dapd.plots.palette import STEPS, colour, family, labels
from dapd.trace import Trace

BINS = 100
"""Points of normalised progress."""
MOST_PANELS = 12


def trajectory(traces: Sequence[Trace], path: Path, until: float = 1.0) -> None:
    """A panel per trace: positions across, progress down, each token in the colour of its step from then on."""
    check(traces, path, until)
    if len(traces) > MOST_PANELS:
        raise DapdError(f"{len(traces)} trajectories in one figure cannot be read; give at most {MOST_PANELS} traces")
    plt = pyplot()
    columns = 2 if len(traces) > 1 else 1
    lines = -(-len(traces) // columns)
    size = (WIDE if columns > 1 else 4.6, 2.15 * lines + 0.35)
    figure, axes = plt.subplots(lines, columns, figsize=size, squeeze=False, sharey=True)
    for axis in axes.flat[len(traces) :]:
        axis.set_visible(False)
    image = None
    for axis, trace, label in zip(axes.flat, traces, labels(traces), strict=False):
        steps = max(1, round(until * trace.nfe))
        grid = torch.where(births(trace)[None] <= torch.arange(1, steps + 1)[:, None], births(trace)[None], torch.nan)
        image = axis.imshow(
            (grid - 1) / max(1, trace.nfe - 1),
            aspect="auto",
            interpolation="nearest",
            cmap=STEPS,
            vmin=0,
            vmax=until,
            extent=(0, len(trace.slots), 100 * steps / trace.nfe, 0),
        )
        axis.set_title(f"{label} ({trace.nfe} passes)")
        _frame(axis)
    _outer_labels(axes, len(traces), "token position", "progress (%)")
    assert image is not None
    bar = figure.colorbar(image, ax=axes.ravel().tolist(), aspect=30, pad=0.02)
    bar.set_label("decided at (share of passes)")
    bar.outline.set_visible(False)
    save(figure, path)


def heatmap(traces: Sequence[Trace], path: Path, until: float = 1.0) -> None:
    """A panel per decoder: the share of samples in which a position is decided, over normalised progress."""
    check(traces, path, until)
    plt = pyplot()
    groups = by_family(traces)
    columns = min(2, len(groups))
    lines = -(-len(groups) // columns)
    size = (WIDE if columns > 1 else 4.6, 2.15 * lines + 0.4)
    figure, axes = plt.subplots(lines, columns, figsize=size, squeeze=False, sharex=True, sharey=True)
    for axis in axes.flat[len(groups) :]:
        axis.set_visible(False)
    image = None
    for axis, (name, group) in zip(axes.flat, groups.items(), strict=False):
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
        axis.set_title(f"{name} ({len(group)} sample{'s' * (len(group) > 1)})", pad=13)
        _frame(axis)
        _questions(axis, group)
    _outer_labels(axes, len(groups), "token position", "progress (%)")
    assert image is not None
    bar = figure.colorbar(image, ax=axes.ravel().tolist(), aspect=30, pad=0.02)
    bar.set_label("share of samples decided")
    bar.outline.set_visible(False)
    save(figure, path)


def segments(traces: Sequence[Trace], path: Path) -> None:
    """Mean segment count with its spread, over forward passes and over normalised progress."""
    check(traces, path, 1.0)
    plt = pyplot()
    figure, (passes, progress) = plt.subplots(1, 2, figsize=(WIDE, 2.7), sharey=True)
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
    for axis in (passes, progress):
        axis.grid(alpha=0.25, linewidth=0.5)
        axis.set_ylim(bottom=0)
        axis.margins(x=0.01)
    handles, names = passes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=min(5, len(names)))
    save(figure, path)


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


def check(traces: Sequence[Trace], path: Path, until: float) -> None:
    check_suffix(path)
    if not 0 < until <= 1:
        raise DapdError(f"--until is {until}; it is a share of the decoding, above 0 and at most 1")
    if not traces:
        raise DapdError("there are no traces to draw")
    for number, trace in enumerate(traces, 1):
        if not trace.steps:
            raise DapdError(f"trace {number} is empty: nothing was decoded in it")


def _same_length(group: Sequence[Trace]) -> Sequence[Trace]:
    lengths = sorted({len(trace.slots) for trace in group})
    if len(lengths) > 1:
        raise DapdError(f"samples of {lengths[0]} and {lengths[-1]} new tokens cannot be averaged position by position")
    return group


def _band(axis: Any, x: Tensor, values: Float[Tensor, "samples points"], name: str, n: int) -> None:
    """The mean and the middle 80% of the samples."""
    axis.plot(x, values.mean(0), color=colour(name), label=name if n == 1 else f"{name} ({n})")
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


def _outer_labels(axes: Any, count: int, across: str, down: str) -> None:
    columns = axes.shape[1]
    for number, axis in enumerate(axes.flat[:count]):
        axis.label_outer()
        if number + columns >= count:
            axis.set_xlabel(across)
            axis.tick_params(labelbottom=True)
        if number % columns == 0:
            axis.set_ylabel(down)
