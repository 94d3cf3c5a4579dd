"""The report as Markdown: our numbers beside the paper's, table by table."""

from __future__ import annotations

from collections.abc import Sequence

from dapd.io.table import Table
from dapd.io.wording import plural
from dapd.mrf import paper
from dapd.mrf.decoders import Decoded
from dapd.mrf.evaluate import Evaluation
from dapd.mrf.metrics import Measure, Row
from dapd.mrf.study import ScoreStudy

MEASURES = ("auc", "ratio", "ovr")


def markdown(evaluation: Evaluation, scores: ScoreStudy, decoders: Sequence[Decoded]) -> str:
    parts = [
        convergence(evaluation),
        "## Overall, last two layers\n",
        overall_table(evaluation),
        "## By decoding step, last two layers\n",
        step_table(evaluation),
        "## Layer selection\n",
        layer_table(evaluation),
        "## The attention of all models averaged before it is ranked\n",
        pooled_table(scores),
        "## Scores as the decoder compares them (divided by the row's largest)\n",
        row_max_table(evaluation, scores),
        cut_table(scores),
        "## Single heads\n",
        head_table(scores),
        "## Decoders\n",
        decoder_table(decoders),
    ]
    return "\n".join(parts)


def convergence(evaluation: Evaluation) -> str:
    worst = evaluation.valid_worst
    n_models = evaluation.n_models
    text = f"Step-by-step samples in random order with all four constraints: {evaluation.valid:.2%}"
    text += f" over {plural(n_models, 'model')}, {worst:.2%} for the worst"
    if (losses := evaluation.loss_by_model) is None:
        return f"{text}.\n"
    return f"{text}; loss {sum(losses) / n_models:.4f}, {max(losses):.4f} for the worst (exact, over all contexts).\n"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return Table(header, rows, words=len(header)).to_markdown()


def overall_table(evaluation: Evaluation) -> str:
    overall = next(iter(evaluation.selections.values())).overall
    ours = ["here", *(f"{getattr(overall, m).mean:.3f}" for m in MEASURES)]
    theirs = ["paper", *(f"{getattr(paper.OVERALL, m):.3f}" for m in MEASURES)]
    between = ["deviation between models", *(f"{getattr(overall, m).over_models:.3f}" for m in MEASURES)]
    return table(["", "AUC", "ratio", "OVR"], [ours, between, theirs])


def step_table(evaluation: Evaluation) -> str:
    rows = []
    steps = next(iter(evaluation.selections.values())).steps
    for number, (step, theirs) in enumerate(zip(steps, paper.STEPS, strict=True), 1):
        assert theirs.spread is not None
        published = [f"{getattr(theirs, m):.3g} ± {s:.2f}" for m, s in zip(MEASURES, theirs.spread, strict=True)]
        ours = [with_spread(getattr(step, m)) for m in MEASURES]
        between = f"{step.auc.over_models:.3f}"
        rows.append([str(number), *interleave(ours, published), between])
    header = ["step", *interleave(["AUC", "ratio", "OVR"], ["paper"] * 3), "AUC between models"]
    return table(header, rows) + "\n± is the deviation over sampling paths of the mean over models, as in the paper.\n"


def layer_table(evaluation: Evaluation) -> str:
    rows = []
    for name, selection in evaluation.selections.items():
        theirs = paper.LAYERS[name]
        ours = [f"{getattr(selection.overall, m).mean:.3f}" for m in MEASURES]
        rows.append([name, *interleave(ours, [f"{getattr(theirs, m):.2f}" for m in MEASURES])])
    return table(["layers", *interleave(["AUC", "ratio", "OVR"], ["paper"] * 3)], rows)


def pooled_table(scores: ScoreStudy) -> str:
    """AUC and OVR of the pooled attention by layer selection, and its OVR at each step."""
    rows = []
    for name, selection in scores.pooled.items():
        theirs, ours = paper.LAYERS[name], selection.overall
        by_step = [f"{step.ovr.mean:.2f}" for step in selection.steps]
        rows.append([name, f"{ours.auc.mean:.3f}", f"{ours.ovr.mean:.3f}", f"{theirs.ovr:.2f}", *by_step])
    published = ["paper, last 2", f"{paper.OVERALL.auc:.3f}", "", f"{paper.OVERALL.ovr:.2f}"]
    published += [f"{step.ovr:.2f}" for step in paper.STEPS]
    return table(["layers", "AUC", "OVR", "paper", *(f"OVR {i + 1}" for i in range(7))], [*rows, published])


def row_max_table(evaluation: Evaluation, scores: ScoreStudy) -> str:
    rows = []
    for name, selection in scores.row_max.items():
        raw: Row = evaluation.selections[name].overall
        rows.append([f"{name}, raw", f"{raw.auc.mean:.3f}", f"{raw.ratio.mean:.2f}"])
        rows.append([f"{name}, row-max", f"{selection.overall.auc.mean:.3f}", f"{selection.overall.ratio.mean:.2f}"])
    return table(["layers", "AUC", "ratio"], rows)


def cut_table(scores: ScoreStudy) -> str:
    """Recall and false alarms of the thresholded graph."""
    names = list(scores.cuts)
    header = ["tau", *(f"{name}: {what}" for name in names for what in ("edges found", "false edges"))]
    rows = []
    for cuts in zip(*scores.cuts.values(), strict=True):
        cells = [f"{share:.1%}" for cut in cuts for share in (cut.edges_found, cut.false_edges)]
        rows.append([f"{cuts[0].tau:g}", *cells])
    return table(header, rows)


def head_table(scores: ScoreStudy) -> str:
    heads = scores.heads
    rows = [
        ["best head of a model (chosen on half of the paths, measured on the others)", f"{heads.best:.3f}"],
        ["median head", f"{heads.median:.3f}"],
        ["worst head", f"{heads.worst:.3f}"],
        *([f"mean head of layer {i + 1}", f"{value:.3f}"] for i, value in enumerate(heads.by_layer)),
    ]
    where = ", ".join(f"layer {i + 1}: {n}" for i, n in enumerate(heads.best_layers) if n)
    return table(["head", "AUC"], rows) + f"\nWhere the best head lies, number of models: {where}.\n"


def decoder_table(decoders: Sequence[Decoded]) -> str:
    rows = [
        [d.family, d.setting, f"{d.forwards:.2f}", f"{d.valid:.1%}", f"{d.constraints:.1%}", f"{d.ties:.2f}"]
        for d in decoders
    ]
    header = ["decoder", "setting", "forwards", "valid", "constraints that hold", "true edges cut"]
    note = "\nA true edge is cut where both of its ends are committed in the same pass (there are 12 edges).\n"
    count = f"{decoders[0].n_samples} samples each, temperature 1.\n" if decoders else ""
    return table(header, rows) + note + count


def with_spread(measure: Measure) -> str:
    return f"{measure.mean:.3f} ± {measure.over_paths:.2f}"


def interleave(ours: Sequence[str], theirs: Sequence[str]) -> list[str]:
    return [cell for pair in zip(ours, theirs, strict=True) for cell in pair]
