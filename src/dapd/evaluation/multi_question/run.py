"""The analysis of section 6 from start to table: five questions a prompt, every method, one block of 256 tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from dapd.evaluation.decoding import Plan, Query, decode_all, mean
from dapd.evaluation.multi_question.analysis import Behaviour, behaviour, observe
from dapd.evaluation.multi_question.questions import PER_BUNDLE, Bundle
from dapd.evaluation.multi_question.scoring import score
from dapd.evaluation.runs import Record, Run
from dapd.generation import Completion, DiffusionLM
from dapd.io.files import make_folder
from dapd.settings import Setting, describe
from dapd.strategies import Dapd, EntropyBound, Klass, Threshold, TopK
from dapd.trace import write_traces

METHODS = {
    "original": Setting(TopK()),
    "fast-dllm": Setting(Threshold(0.9)),
    "klass": Setting(Klass(0.9, 0.015)),
    "eb-sampler": Setting(EntropyBound(0.1)),
    "dapd-staged": Setting(Dapd(0.01, 0.05)),
}
"""One block each. The paper swept the baselines, kept the most accurate setting and does not name it: these are values
within its sweeps, nearest to the methods' defaults; SWEEPS holds all of them."""

SWEEPS = {
    "fast-dllm": [Setting(Threshold(bar)) for bar in (0.6, 0.7, 0.8, 0.9)],
    "klass": [Setting(Klass(bar, kl)) for bar, kl in product((0.6, 0.7, 0.8, 0.9), (0.001, 0.0015, 0.015, 0.1, 0.2))],
    "eb-sampler": [Setting(EntropyBound(gamma)) for gamma in (0.05, 0.1, 0.15, 0.2)],
}

TRACES = "traces"
PICTURED = 2
"""The folder of the traces that are kept, and the number of bundles for which they are."""


@dataclass(frozen=True)
class MethodResult:
    """One method on all bundles."""

    strategy: dict[str, Any]
    folder: str
    """Folder in which the results of this method are kept, maybe beside those of other bundles."""
    bundles: list[tuple[str, str]]
    """Key and digest of the result of each bundle, in order."""
    n_questions: int
    accuracy: float
    """Right answers in percent of the questions."""
    steps: float
    behaviour: Behaviour


def evaluate(
    model: DiffusionLM,
    bundles: Sequence[Bundle],
    plan: Plan,
    out: Path,
    *,
    progress: Callable[[int], None] = lambda n: None,
) -> list[Record]:
    """Decode every bundle; of the first ones the whole trace, tokens included, is written for the viewer."""
    run = Run.open(out, {"bench": "multi-question", **plan.setup(model)}, "multi-question run")
    shown = {bundle.key: number for number, bundle in enumerate(bundles[:PICTURED])}

    def keep(query: Query, done: Completion) -> Record:
        if query.key in shown:
            make_folder(out / TRACES)
            write_traces(out / TRACES / f"{shown[query.key]}.jsonl", [done.trace])
        return observe(model, done, PER_BUNDLE)

    return decode_all(model, plan, [Query(b.key, b.messages()) for b in bundles], run, keep, progress)


def summarise(bundles: Sequence[Bundle], records: Sequence[Record], plan: Plan, out: Path) -> MethodResult:
    right = [
        verdict
        for bundle, record in zip(bundles, records, strict=True)
        for verdict in score(record["text"], bundle.questions)
    ]
    return MethodResult(
        strategy=describe(plan.setting.strategy),
        folder=str(out),
        bundles=[(record["key"], record["digest"]) for record in records],
        n_questions=len(right),
        accuracy=100 * mean([float(verdict) for verdict in right]),
        steps=mean([record["nfe"] for record in records]),
        behaviour=behaviour(records),
    )


def as_json(results: dict[str, MethodResult]) -> dict[str, dict[str, object]]:
    """Everything that the figure is drawn from."""
    return {method: dataclasses.asdict(result) for method, result in results.items()}
