"""Accuracy against forward passes on the lab's tasks: every decoder, its knob swept, compared by Pareto front.

    python experiments/lab_tradeoff.py --out docs/lab/tradeoff --prompts 200 --device cuda --tf32

writes results.jsonl (every prompt), summary.json, tradeoff.png and tradeoff.md: a table per task, what DAPD costs at
the accuracy of step-by-step decoding beside the best baseline, and the edge AUC of every layer on the tasks whose true
graph is known. A killed run goes on where it was. `--tasks` and `--only` restrict it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from dapd.cli import run
from dapd.cli.progress import Working
from dapd.evaluation.compare import Comparison, Result, decoders
from dapd.evaluation.edges import EdgeAuc, edge_auc
from dapd.evaluation.summary import Row, areas, fewest_at, pareto, summarise
from dapd.generation import DEFAULT_MODEL, DiffusionLM, load
from dapd.io.files import write_text
from dapd.lab.tasks import Task, get
from dapd.plots.tradeoff import tradeoff
from dapd.strategies import AttentionNeed

TASKS = "bundle-5,tied,story,shuffle,insert_random,latin,sudoku,sentence,copy"
TAUS = ("tau_min=0.01,tau_max=0.15", "tau_min=0.05,tau_max=0.3", "tau_min=0.1,tau_max=0.5")
BASELINES = (
    "original",
    "original:k=2/4/8/16",
    "fast-dllm:threshold=0.5/0.7/0.8/0.9/0.95",
    "fast-dllm-factor:factor=0.5/1/2",
    "eb-sampler:gamma=0.01/0.1/0.3/0.5/1",
    "klass",
    "klass:confidence=0.6/0.8",
    "local-leap:relaxed=0.5/0.6/0.75",
    "dawn:low=0.7/0.8",
)
OURS = (
    *(f"dapd-staged:{tau}" for tau in TAUS),
    *(f"dapd-staged:{tau},layers=1.0" for tau in TAUS),
    *(f"dapd-staged:{tau},layers=2+3+4+5" for tau in TAUS),
    "dapd-direct:tau_min=0.005,tau_max=0.01/0.05",
    *(f"dapd-direct:{tau}" for tau in TAUS),
    *(f"dapd-direct:{tau},layers=1.0" for tau in TAUS),
    *(f"dapd-direct:{tau},layers=2+3+4+5" for tau in TAUS),
)
CONTROLS = (
    "control-shuffled:tau_min=0.05,tau_max=0.3",
    "control-shuffled:tau_min=0.05,tau_max=0.3,shortcut=direct",
    "control-confidence:tau_min=0.05,tau_max=0.3",
    "control-confidence:tau_min=0.05,tau_max=0.3,shortcut=direct",
    "control-distance:width=2/4/8/16",
    "control-distance:width=2/4/8/16,shortcut=direct",
)
DAPD = ("dapd-staged", "dapd-direct")
BASELINE_FAMILIES = tuple(dict.fromkeys(spec.partition(":")[0] for spec in BASELINES))


def main(
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("tradeoff"),
    model: Annotated[str, typer.Option("--model", "-m")] = DEFAULT_MODEL,
    tasks: Annotated[str, typer.Option(help="Tasks, separated by commas.")] = TASKS,
    prompts: Annotated[int, typer.Option(help="Test prompts per task.")] = 200,
    batch: Annotated[int, typer.Option(help="Prompts per batch.")] = 200,
    device: Annotated[str | None, typer.Option()] = None,
    only: Annotated[str | None, typer.Option(help="Only decoders whose label holds this.")] = None,
    edges: Annotated[bool, typer.Option(help="Measure the edge AUC of every layer too.")] = True,
    tf32: Annotated[bool, typer.Option(help="Matrix products in TF32: faster on a GPU, a little coarser.")] = False,
) -> None:
    """Accuracy against forward passes on the lab's tasks."""
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    lm = load(model, device=device, dtype=torch.float32)
    asked = [get(name) for name in tasks.split(",")]
    chosen = [d for spec in (*BASELINES, *OURS, *CONTROLS) for d in decoders(spec) if only is None or only in d.label]
    comparison = Comparison(lm, chosen, asked, prompts, batch=batch)
    with Working(Console(stderr=True), "decoding", len(comparison)) as work:
        results = comparison.run(out, work.advance)
    rows = summarise(results)
    aucs = [auc for task in asked if task.graph and edges for auc in layer_aucs(lm, task)]
    content = {
        "setup": comparison.setup() | {"tf32": tf32},
        "rows": [dataclasses.asdict(row) for row in rows],
        "aup": areas(rows),
        "edges": [dataclasses.asdict(auc) for auc in aucs],
    }
    write_text(out / "summary.json", json.dumps(content, indent=1) + "\n")
    tradeoff(rows, out / "tradeoff.png")
    write_text(out / "tradeoff.md", markdown(rows, aucs, asked) + ladder(results, prompts))
    print((out / "tradeoff.md").read_text(encoding="utf-8"))


def layer_aucs(lm: DiffusionLM, task: Task) -> list[EdgeAuc]:
    """Every layer alone, the last 30%, the middle, and all, with everything masked and with half of it."""
    n = lm.network.n_layers
    last = tuple(sorted(AttentionNeed(0.3).resolve(n)))
    sets = [*((i,) for i in range(n)), last, tuple(range(n // 4, 3 * n // 4)), tuple(range(n))]
    return [auc for share in (1.0, 0.5) for auc in edge_auc(lm, task, list(dict.fromkeys(sets)), masked=share)]


def markdown(rows: Sequence[Row], edges: Sequence[EdgeAuc], tasks: Sequence[Task]) -> str:
    lines = ["# Accuracy against forward passes", "", *verdicts(rows, tasks), ""]
    for task in tasks:
        here = [row for row in rows if row.task == task.name]
        front = {row.decoder for row in pareto(here)}
        lines += [f"## {task.name}", "", "| decoder | score | 95% | passes | tokens/pass |", "|---|---|---|---|---|"]
        lines += [
            f"| {'**' + row.decoder + '**' if row.decoder in front else row.decoder} | {row.score:.1f} | "
            f"{row.low:.1f}-{row.high:.1f} | {row.nfe:.1f} | {row.tokens_per_forward:.2f} |"
            for row in here
        ]
        lines.append("")
    return "\n".join([*lines, *edge_table(edges), ""])


def verdicts(rows: Sequence[Row], tasks: Sequence[Task]) -> list[str]:
    """Per task: forward passes at the accuracy of step-by-step decoding, DAPD beside the best baseline."""
    lines = [
        "| task | step by step | best baseline within 1 point | best DAPD within 1 point | ratio |",
        "|---|---|---|---|---|",
    ]
    for task in tasks:
        here = [row for row in rows if row.task == task.name]
        ceiling = next((row for row in here if row.decoder == "original"), None)
        if ceiling is None:
            continue
        base = fewest_at([row for row in here if row.family in BASELINE_FAMILIES], ceiling.score - 1)
        ours = fewest_at([row for row in here if row.family in DAPD], ceiling.score - 1)
        ratio = f"{base.nfe / ours.nfe:.2f}" if base and ours else "-"
        shown = [f"{row.score:.1f} in {row.nfe:.1f} ({row.decoder})" if row else "none" for row in (base, ours)]
        lines.append(f"| {task.name} | {ceiling.score:.1f} in {ceiling.nfe:.0f} | {shown[0]} | {shown[1]} | {ratio} |")
    return lines


def edge_table(edges: Sequence[EdgeAuc]) -> list[str]:
    if not edges:
        return []
    sets = list(dict.fromkeys(auc.layers for auc in edges))
    names = [f"{s[0]}" if len(s) == 1 else f"{s[0]}-{s[-1]}" for s in sets]
    lines = ["## Edge AUC by layer", "", f"| task | masked | {' | '.join(names)} |", "|" + "---|" * (len(sets) + 2)]
    for task, share in dict.fromkeys((auc.task, auc.masked) for auc in edges):
        found = {auc.layers: auc.auc for auc in edges if (auc.task, auc.masked) == (task, share)}
        lines.append(f"| {task} | {share:.0%} | " + " | ".join(f"{found[s]:.2f}" for s in sets) + " |")
    return lines


def ladder(results: Sequence[Result], prompts: int) -> str:
    """Score and passes on tied bundles by how strongly the prompt ties the answers' styles."""
    asked = get("tied").examples(prompts)
    split = [dataclasses.replace(r, task=f"{asked[r.example].meta['rho']:g}") for r in results if r.task == "tied"]
    rows = {(row.decoder, row.task): row for row in summarise(split)}
    ties = sorted({task for _, task in rows}, key=float)
    lines = ["## Tied bundles by the strength of the tie", "", f"| decoder | {' | '.join(ties)} |", "|" + "---|" * 4]
    for decoder in dict.fromkeys(decoder for decoder, _ in rows):
        cells = [f"{rows[decoder, t].score:.1f} in {rows[decoder, t].nfe:.1f}" for t in ties]
        lines.append(f"| {decoder} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""]) if rows else ""


if __name__ == "__main__":
    run(main)
