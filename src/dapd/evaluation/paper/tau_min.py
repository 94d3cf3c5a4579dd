"""The distribution of edge scores on the multi-question prompts, which the choice of tau_min rests on."""

from __future__ import annotations

from dataclasses import replace

import torch

from dapd.evaluation.decoding import Query, decode_all
from dapd.evaluation.edge_scores import BINS, LOWEST, EdgeCounter
from dapd.evaluation.paper import numbers
from dapd.evaluation.paper.cells import LENGTH
from dapd.evaluation.paper.multi import ask_all
from dapd.evaluation.paper.report import Report
from dapd.evaluation.paper.study import Study
from dapd.evaluation.runs import Record, Run
from dapd.generation import Completion
from dapd.settings import Setting

THRESHOLDS = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.5)
FIGURE = "tau_min_histogram"


def tau_min(study: Study) -> Report:
    """The distribution of normalised mask-to-mask edge scores over whole decodings, on the multi-question prompts."""
    bundles = ask_all(study)
    counter = EdgeCounter(THRESHOLDS)
    plan = replace(study.plan(Setting(counter), LENGTH), batch=1)
    folder = study.folder(f"tau_min_{plan.length}")
    run = Run.open(folder, {"bench": "edge scores", "bins": BINS, **plan.setup(study.model)}, "count of edge scores")

    def keep(one: Query, done: Completion) -> Record:
        counts = counter.counts.tolist()
        below = counter.below.tolist()
        counter.clear()
        return {"counts": counts, "below": below}

    study.tell(f"tau_min: {len(bundles)} prompts, step by step")
    prompts = [Query(bundle.key, bundle.messages()) for bundle in bundles]
    records = decode_all(study.model, plan, prompts, run, keep, study.progress)
    counts = torch.tensor([record["counts"] for record in records]).sum(0)
    below = torch.tensor([record["below"] for record in records]).sum(0)
    total = max(1, int(counts.sum()))
    shares = {f"{limit:g}": int(n) / total for limit, n in zip(THRESHOLDS, below, strict=True)}
    chosen = numbers.TAU_MIN[study.family]
    figure = {"tau_min": chosen, "lowest": LOWEST, "counts": counts.tolist(), "pairs": total, "share_below": shares}
    study.write_json(FIGURE, figure)
    text = [f"{total} ordered pairs of masked positions in {len(records)} decodings, step by step", ""]
    text += ["| normalised edge score below | share of pairs, % |", "|---:|---:|"]
    for limit, share in shares.items():
        mark = " (tau_min)" if float(limit) == chosen else ""
        text.append(f"| {limit}{mark} | {100 * share:.3f} |")
    note = "The paper gives a histogram and no number: its tau_min lies in the near-zero tail."
    return Report("tau_min", numbers.LABELS["tau_min"], (), (*study.notes(), note), "\n".join(text))
