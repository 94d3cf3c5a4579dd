"""The figures that belong to the paper's tables, drawn from the files that a table wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dapd.evaluation.multi_question import as_trace
from dapd.evaluation.multi_question.run import PICTURED, TRACES
from dapd.evaluation.paper import Line, Report, Study
from dapd.evaluation.paper import multi as multi_table
from dapd.evaluation.paper import tau_min as tau_min_table
from dapd.evaluation.paper.cells import LENGTH
from dapd.evaluation.paper.numbers import TITLES
from dapd.evaluation.runs import Record, Run
from dapd.plots.axes import TITLE_PAD, percent_limits
from dapd.plots.decoding import heatmap, segments, trajectory
from dapd.plots.edges import Scores, edges
from dapd.plots.figure import Grid, sheet
from dapd.plots.palette import style
from dapd.plots.states import MOST_TOKENS, states
from dapd.trace import read_traces

EARLY = 0.4
"""The share of the decoding that the paper's heat map shows."""


def draw(report: Report, study: Study) -> list[Path]:
    """The figures of a table; none where it has none."""
    figures: dict[str, Callable[[Report, Study], list[Path]]] = {
        "main": tradeoff,
        "parallelbench": tradeoff,
        "multi": behaviour,
        "tau_min": histogram,
    }
    return figures[report.table](report, study) if report.table in figures else []


def tradeoff(report: Report, study: Study) -> list[Path]:
    """Score against steps, a panel per task: ours filled, the paper's hollow, a line between the two."""
    tasks = list(dict.fromkeys(line.column for line in report.lines))
    path = study.file(report.table, ".png")
    columns = min(3, len(tasks))
    size = (2.3 * columns + 0.6, 2.3 * -(-len(tasks) // columns) + 0.8)
    with sheet(path, Grid(len(tasks), columns, size)) as drawing:
        for axis, task in zip(drawing.axes, tasks, strict=True):
            lines = [line for line in report.lines if line.column == task]
            axis.set_ylim(percent_limits(score for line in lines for score in _scores(line) if score is not None))
            axis.set_title(task, pad=TITLE_PAD)
            for line in lines:
                _points(axis, line)
            axis.set_xlim(left=0)
        drawing.outer_labels("forward passes (per sample)", "score (%); hollow: the paper's")
        drawing.legend()
    return [path]


def _measure(line: Line) -> str:
    return "accuracy" if "accuracy" in line.published else "score"


def _scores(line: Line) -> tuple[float | None, float | None]:
    """Our score and the paper's."""
    return line.ours[_measure(line)], line.published[_measure(line)]


def _points(axis: Any, line: Line) -> None:
    """One method's point and the paper's; a score that is missing here leaves the paper's alone."""
    names = {title: name for name, title in TITLES.items()}
    look = style(names.get(line.row, line.row))
    ours, paper = _scores(line)
    steps = line.ours["steps"], line.published["steps"]
    hollow = {"facecolors": "none", "edgecolors": look["color"], "marker": look["marker"]}
    axis.scatter(steps[1], paper, s=30, clip_on=False, label=line.row, **hollow)
    if ours is not None:
        axis.plot(steps, (ours, paper), lw=0.8, alpha=0.4, color=look["color"])
        axis.scatter(steps[0], ours, s=30, clip_on=False, label=line.row, **look)


def behaviour(report: Report, study: Study) -> list[Path]:
    """Section 6: the heat map of the first 40%, the segment counts, the trajectories of two bundles, and the text of
    the first one as it comes about, a figure for each method."""
    figure = json.loads(study.file(multi_table.FIGURE, ".json").read_text(encoding="utf-8"))
    groups = [
        [as_trace(record, result["strategy"]) for record in _of_bundles(result, study)] for result in figure.values()
    ]
    traces = [trace for group in groups for trace in group]
    heat = study.file("multi_heatmap", ".png")
    counts = study.file("multi_segments", ".png")
    heatmap(traces, heat, until=EARLY)
    segments(traces, counts)
    pictured = range(min(PICTURED, *map(len, groups)))
    paths = [study.file(f"multi_trajectories_{number + 1}", ".png") for number in pictured]
    for number, path in zip(pictured, paths, strict=True):
        trajectory([group[number] for group in groups], path)
    return [heat, counts, *paths, *_pictures(figure, study)]


def _of_bundles(result: dict[str, Any], study: Study) -> list[Record]:
    """The records of the bundles that the table is made of: a folder holds them as they were completed, and may hold
    more."""
    records = {(one["key"], one["digest"]): one for one in Run(study.out / result["folder"]).records()}
    return [records[key, digest] for key, digest in result["bundles"]]


def _pictures(figure: dict[str, Any], study: Study) -> list[Path]:
    """The appendix's examples: the first bundle's text by each method, from the trace that its run kept; none where it
    is too long to be read."""
    if study.scope.scaled(LENGTH) > MOST_TOKENS:
        return []
    paths = {method: study.file(f"multi_states_{method}", ".png") for method in figure}
    for method, path in paths.items():
        states(read_traces(study.out / figure[method]["folder"] / TRACES / "0.jsonl"), path)
    return list(paths.values())


def histogram(report: Report, study: Study) -> list[Path]:
    """How edge scores are distributed."""
    figure = json.loads(study.file(tau_min_table.FIGURE, ".json").read_text(encoding="utf-8"))
    chosen = figure["tau_min"]
    pairs = figure["pairs"]
    below = {chosen: round(figure["share_below"][f"{chosen:g}"] * pairs)}
    path = study.file("tau_min", ".png")
    edges(Scores(torch.tensor(figure["counts"], dtype=torch.float64), below), path)
    return [path]
