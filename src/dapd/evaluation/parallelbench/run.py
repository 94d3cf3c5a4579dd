"""ParallelBench from start to table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dapd.evaluation.decoding import Plan, Query, decode_all, mean, tokens_per_second
from dapd.evaluation.parallelbench.data import BenchTask, Sample, gold
from dapd.evaluation.parallelbench.scoring import Parts, score
from dapd.evaluation.parallelbench.text import Tools
from dapd.evaluation.runs import Record, Run
from dapd.generation import DiffusionLM


@dataclass(frozen=True)
class TaskScore:
    """One task under one decoder. Scores are in percent; None: a tool that the score needs is not installed."""

    task: str
    n: int
    score: float | None
    parts: dict[str, float | None]
    steps: float
    tps: float


def evaluate(
    model: DiffusionLM,
    task: BenchTask,
    plan: Plan,
    out: Path,
    *,
    limit: int | None = None,
    progress: Callable[[int], None] = lambda n: None,
) -> list[Record]:
    """The completions of a task's samples; the folder may be one that a killed run left."""
    queries = [Query(sample.key, task.messages(sample)) for sample in task.samples[:limit]]
    run = Run.open(out, {"bench": "parallelbench", "task": task.name, **plan.setup(model)}, "ParallelBench run")
    return decode_all(model, plan, queries, run, progress=progress)


def summarise(task: BenchTask, records: Sequence[Record], tools: Tools) -> TaskScore:
    """Score the texts of a task. Scores are not kept with the texts, so that a tool that is installed later counts."""
    pairs = zip(task.samples, records, strict=False)  # a limited run has the first samples
    scored = [score(task.metric, record["text"], sample.answer, tools) for sample, record in pairs]
    parts = averages(scored)
    steps = mean([record["nfe"] for record in records])
    return TaskScore(task.name, len(records), parts.pop("score"), parts, steps, tokens_per_second(records))


def gold_scores(task: BenchTask, tools: Tools, samples: Iterable[Sample] | None = None) -> Parts:
    """The scores of the task's own answers, in percent: 100 wherever the metric is exact."""
    chosen = task.samples if samples is None else samples
    return averages([score(task.metric, gold(sample.answer), sample.answer, tools) for sample in chosen])


def averages(scored: Sequence[Parts]) -> dict[str, float | None]:
    """Means in percent; one unknown value makes the mean unknown."""
    out: dict[str, float | None] = {}
    for part in scored[0]:
        values = [one[part] for one in scored]
        known = [value for value in values if value is not None]
        out[part] = 100 * mean(known) if len(known) == len(values) else None
    return out
