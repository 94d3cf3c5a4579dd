"""The toy Markov random field: scores of true edges against the others, from a report's results or from a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from dapd.errors import DapdError
from dapd.mrf import paper
from dapd.mrf.paths import sample_paths
from dapd.mrf.storage import SHIPPED, load_run
from dapd.mrf.study import pair_scores
from dapd.plots.figure import WIDE, check_suffix, pyplot, save

EDGE, OTHER = "#D55E00", "#0072B2"
N_PATHS = 20
LAYERS = {"last 2": "last two layers", "all": "all layers"}


def toy(source: Path | None, path: Path) -> None:
    """From results (.json or its folder): what a threshold finds, AUC by step. From a run: the scores themselves."""
    check_suffix(path)
    results = source / "results.json" if source is not None and source.is_dir() else source
    if results is not None and results.suffix == ".json" and (results.is_file() or source == results):
        return measures(_read(results), path)
    if source is not None and not (source / "recipe.json").is_file():
        raise DapdError(f"{source} is neither a toy report's results.json nor a toy run's folder")
    return distributions(source or SHIPPED, path)


def measures(found: dict[str, Any], path: Path) -> None:
    """Left: the share of pairs above a threshold. Right: AUC at each step beside the paper's."""
    plt = pyplot()
    figure, (cuts, steps) = plt.subplots(1, 2, figsize=(WIDE, 2.7))
    try:
        for (name, rows), dash in zip(found["scores"]["cuts"].items(), ("-", "--", ":"), strict=False):
            taus = [row["tau"] for row in rows]
            for key, colour, said in (("edges_found", EDGE, "edges"), ("false_edges", OTHER, "non-edges")):
                label = f"{said}, {LAYERS.get(name, name)}"
                cuts.plot(taus, [100 * row[key] for row in rows], dash, color=colour, marker="o", ms=3.5, label=label)
        ours = next(iter(found["evaluation"]["selections"].values()))["steps"]
        mean = [row["auc"]["mean"] for row in ours]
        spread = [row["auc"]["over_paths"] for row in ours]
    except (KeyError, TypeError, AttributeError, StopIteration) as error:
        raise DapdError(f"these are not the results of a toy report (`dapd mrf report --out`): no {error}") from None
    _by_step(steps, mean, spread)
    cuts.set_xlabel("threshold τ on the row-max score")
    cuts.set_ylabel("pairs above it (%)")
    cuts.set_ylim(0, 103)
    cuts.legend(fontsize=7.5, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, handlelength=3.2)
    for axis in (cuts, steps):
        axis.grid(alpha=0.25, linewidth=0.5)
    save(figure, path)


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
    axis.plot(x, mean, color=EDGE, marker="o", ms=4, label="here")
    published = [row.auc for row in paper.STEPS]
    axis.plot(range(1, len(published) + 1), published, color="#555555", ls="--", marker="s", ms=3.5, label="paper")
    axis.set_xlabel("decoding step")
    axis.set_ylabel("AUC of edges against non-edges")
    axis.set_ylim(0.5, 1.01)
    axis.legend(loc="lower left")


def distributions(run: Path, path: Path) -> None:
    """Histograms of the scores of edges and non-edges: raw, and divided by the row's largest."""
    network = load_run(run).network
    paths = sample_paths(network, N_PATHS, 0)
    plt = pyplot()
    figure, axes = plt.subplots(2, 2, figsize=(WIDE, 4.2))
    for row, selection in zip(axes, LAYERS, strict=True):
        for axis, row_max in zip(row, (False, True), strict=True):
            edges, others = (scores.float().cpu() for scores in pair_scores(paths, selection, row_max))
            top = 1.0 if row_max else float(torch.quantile(edges[:100_000], 0.995))
            for values, colour, said in ((edges, EDGE, "edges"), (others, OTHER, "non-edges")):
                heights = 100 * torch.histc(values.clamp(0, top), bins=50, min=0, max=top) / len(values)
                bins = [top * i / 50 for i in range(51)]
                axis.stairs(heights.tolist(), bins, fill=True, color=colour, alpha=0.3)
                axis.stairs(heights.tolist(), bins, color=colour, lw=1.3, label=said)
            axis.set_title(f"{LAYERS[selection]}, {'divided by the row’s largest' if row_max else 'raw'}")
            axis.set_xlim(0, top)
            axis.set_xlabel("edge score")
        row[0].set_ylabel("pairs (%)")
    axes[0, 0].legend()
    save(figure, path)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DapdError(f"cannot read the toy's results from {path}: {error.strerror}") from None
    except ValueError:
        raise DapdError(f"{path} is not JSON: a toy report's results.json is expected") from None
    if not isinstance(found, dict):
        raise DapdError(f"{path} holds no toy report's results")
    return found
