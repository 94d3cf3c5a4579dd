"""The toy Markov random field: the figures of its report, and those that `dapd plot toy` makes of results or a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dapd.errors import DapdError
from dapd.io.files import parse_json
from dapd.mrf import paper
from dapd.mrf.decoders import Decoded
from dapd.mrf.paths import Paths, sample_paths
from dapd.mrf.report import Report
from dapd.mrf.storage import SHIPPED, load_run
from dapd.mrf.study import pair_scores
from dapd.plots.axes import TITLE_PAD, Mark, draw_marks
from dapd.plots.figure import AS_IT_COMES, WIDE, Grid, Layout, check_suffix, has_matplotlib, plain, sheet
from dapd.plots.palette import colour, style

EDGE = colour("dapd-staged")
NON_EDGE = colour("fast-dllm")
N_PATHS = 20
LAYERS = {"last 2": "last two layers", "all": "all layers"}
DECODERS: dict[str, dict[str, Any]] = {
    "true graph": {"color": "#B59F00", "marker": "*"},
    "top-k": {"color": "#888888", "marker": "<"},
    "threshold": style("fast-dllm"),
    "EB": style("eb-sampler"),
    "KLASS": style("klass"),
    "DAPD Staged": style("dapd-staged"),
    "DAPD Direct": style("dapd-direct"),
    "step by step": style("original"),
}
"""The look of the toy's decoders, in the order in which they are drawn."""


def report_figures(report: Report, folder: Path) -> list[Path]:
    """Draw scores.png and validity.png; none where matplotlib is missing, because a report is complete without them."""
    if not has_matplotlib():
        return []
    paths = [folder / "scores.png", folder / "validity.png"]
    distributions(report.paths, paths[0])
    validity(report.decoders, paths[1])
    return paths


def toy(source: Path | None, path: Path, layout: Layout = AS_IT_COMES) -> None:
    """Draw a toy report's results (a .json file or its folder): the pairs above a threshold, and AUC by step. Or draw
    the scores of a run; None: the run that ships."""
    check_suffix(path)
    results = source / "results.json" if source is not None and source.is_dir() else source
    if results is not None and results.suffix == ".json" and (results.is_file() or source == results):
        return measures(_read(results), path, layout)
    if source is not None and not (source / "recipe.json").is_file():
        raise DapdError(f"{source} is neither a toy report's results.json nor a toy run's folder")
    return distributions(sample_paths(load_run(source or SHIPPED).network, N_PATHS, 0), path, layout)


def measures(report: dict[str, Any], path: Path, layout: Layout = AS_IT_COMES) -> None:
    """Draw the share of pairs above a threshold on the left, and on the right AUC at each step beside the paper's."""
    with sheet(path, Grid(2, 2, (WIDE, 3.2)), layout=layout) as drawing:
        cuts, steps = drawing.axes
        try:
            for (name, rows), dash in zip(report["scores"]["cuts"].items(), ("-", "--", ":"), strict=False):
                taus = [row["tau"] for row in rows]
                for key, shade, kind in (("edges_found", EDGE, "edges"), ("false_edges", NON_EDGE, "non-edges")):
                    look = {"color": shade, "marker": "o", "ms": 3.5, "clip_on": False}
                    label = plain(f"{kind}, {LAYERS.get(name, name)}")
                    cuts.plot(taus, [100 * row[key] for row in rows], dash, label=label, **look)
            ours = next(iter(report["evaluation"]["selections"].values()))["steps"]
            mean = [float(row["auc"]["mean"]) for row in ours]
            spread = [float(row["auc"]["over_paths"]) for row in ours]
        except (KeyError, TypeError, ValueError, AttributeError, StopIteration) as error:
            said = "these are not the results of a toy report (`dapd mrf report --out`)"
            raise DapdError(f"{said}: no {error}") from None
        _by_step(steps, mean, spread)
        cuts.set_xlabel("threshold τ on the row-max score")
        cuts.set_ylabel("pairs above the threshold (%)")
        cuts.set_xlim(0, 1)
        cuts.set_ylim(0, 100)
        drawing.legend()


def _by_step(axis: Any, mean: list[float], spread: list[float]) -> None:
    x = range(1, len(mean) + 1)
    axis.fill_between(
        x,
        [m - s for m, s in zip(mean, spread, strict=True)],
        [min(1.0, m + s) for m, s in zip(mean, spread, strict=True)],
        color=EDGE,
        alpha=0.15,
        linewidth=0,
    )
    axis.plot(x, mean, color=EDGE, marker="o", ms=4, label="AUC here")
    published = [row.auc for row in paper.STEPS]
    look = {"color": "#555555", "ls": "--", "marker": "s", "ms": 3.5}
    axis.plot(range(1, len(published) + 1), published, label="AUC in the paper", **look)
    axis.set_xlabel("decoding step")
    axis.set_ylabel("AUC of edges against non-edges")
    axis.set_ylim(0.5, 1)


def distributions(paths: Paths, path: Path, layout: Layout = AS_IT_COMES) -> None:
    """Draw histograms of the scores of edges and non-edges: raw, and divided by the row's largest."""
    with sheet(path, Grid(4, 2, (WIDE, 4.6)), layout=layout) as drawing:
        rows = (drawing.axes[:2], drawing.axes[2:])
        for row, selection in zip(rows, LAYERS, strict=True):
            for axis, row_max in zip(row, (False, True), strict=True):
                edges, others = (scores.float().cpu() for scores in pair_scores(paths, selection, row_max))
                top = 1.0 if row_max else float(edges.sort().values[int(0.995 * (len(edges) - 1))])
                for values, shade, kind in ((edges, EDGE, "edges"), (others, NON_EDGE, "non-edges")):
                    heights = 100 * torch.histc(values.clamp(0, top), bins=50, min=0, max=top) / len(values)
                    bins = [top * i / 50 for i in range(51)]
                    axis.stairs(heights.tolist(), bins, fill=True, color=shade, alpha=0.3)
                    axis.stairs(heights.tolist(), bins, color=shade, lw=1.3, label=kind)
                axis.set_title(f"{LAYERS[selection]}, {'divided by the row’s largest' if row_max else 'raw'}")
                axis.set_xlim(0, top)
                axis.set_xlabel("edge score (share of the row's largest)" if row_max else "edge score (attention)")
            row[0].set_ylabel("pairs (%)")
        drawing.legend()


def validity(decoders: Sequence[Decoded], path: Path) -> None:
    """Draw the share of valid samples against forward passes, a line for each decoder; DAPD's with the last two layers.
    On the right is the top of the left panel, where the safe settings lie."""
    shown = [d for d in decoders if d.family in DECODERS and "all layers" not in d.setting]
    with sheet(path, Grid(2, 2, (WIDE, 3.9))) as drawing:
        whole, top = drawing.axes
        whole.set_title("all settings", pad=TITLE_PAD)
        whole.set_ylim(0, 100)
        top.set_title("the same from 95% on", pad=TITLE_PAD)
        top.set_ylim(95, 100)
        for axis in (whole, top):
            axis.set_xlim(0, 10)
            _validity(axis, [d for d in shown if 100 * d.valid >= axis.get_ylim()[0]])
        drawing.outer_labels("forward passes per sample (mean)", "samples with all four constraints (%)")
        drawing.legend(whole)


def _validity(axis: Any, decoders: Sequence[Decoded]) -> None:
    """Draw the settings as marks: a dotted line joins those of one decoder, and words name the true graph's."""
    ordered = sorted(decoders, key=lambda d: (list(DECODERS).index(d.family), d.forwards))
    for family in DECODERS.keys() - {"step by step", "true graph"}:
        mine = [d for d in ordered if d.family == family]
        at = [d.forwards for d in mine], [100 * d.valid for d in mine]
        axis.plot(*at, ls=":", lw=1.2, color=DECODERS[family]["color"], zorder=1)
    draw_marks(axis, [Mark(d.forwards, 100 * d.valid, DECODERS[d.family], d.family) for d in ordered])
    for d in ordered:
        if d.family == "true graph":
            place = (d.forwards, 100 * d.valid)
            behind = {"color": "white", "pad": 0.5, "alpha": 0.8}
            words = f"by {d.setting.removesuffix(' order')}"
            axis.annotate(words, place, (-6, -9), textcoords="offset points", ha="right", fontsize=8, bbox=behind)


def _read(path: Path) -> dict[str, Any]:
    try:
        report = parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DapdError(f"cannot read the toy's results from {path}: {error.strerror}") from None
    except ValueError:
        raise DapdError(f"{path} is not JSON: a toy report's results.json is expected") from None
    if not isinstance(report, dict):
        raise DapdError(f"{path} holds no toy report's results")
    return report
