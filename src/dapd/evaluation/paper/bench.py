"""The paper's table of ParallelBench."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from dapd.errors import DapdError
from dapd.evaluation.decoding import mean
from dapd.evaluation.paper import numbers
from dapd.evaluation.paper.report import Line, Report
from dapd.evaluation.paper.study import Study
from dapd.evaluation.parallelbench import GROUPS, BenchTask, TaskScore, Tools, evaluate, load_task, summarise
from dapd.settings import PAPER, Setting


def parallelbench(study: Study) -> Report:
    """Every method on the four groups; a group's score and steps are the means of its tasks'."""
    study.only_llada("parallelbench")
    wanted = study.chosen(product(numbers.PARALLELBENCH, GROUPS))
    folder = study.data("parallelbench")
    if folder is None:
        raise DapdError("ParallelBench cannot be fetched: name the folder of its released files with --data-dir")
    loaded = {
        name: [load_task(folder, task) for task in GROUPS[name].names] for name in dict.fromkeys(g for _, g in wanted)
    }
    tools = Tools.find()
    lines = []
    for method, name in wanted:
        study.tell(f"parallelbench: {numbers.TITLES[method]} on {GROUPS[name].title}")
        setting = PAPER[f"{method}@llada/parallelbench"]
        scores = [_task(study, method, setting, task, tools) for task in loaded[name]]
        lines.append(_line(method, name, scores))
    missing = [f"{part} is not scored: {why}." for part, why in tools.missing.items()]
    return Report("parallelbench", numbers.LABELS["parallelbench"], tuple(lines), (*study.notes(), *missing))


def _task(study: Study, method: str, setting: Setting, task: BenchTask, tools: Tools) -> TaskScore:
    plan = study.plan(setting, task.length)
    out = study.folder("parallelbench", f"{method}-{plan.length}", *task.name.split("/"))
    records = evaluate(study.model, task, plan, out, limit=study.scope.limit, progress=study.progress)
    return summarise(task, records, tools)


def _line(method: str, name: str, scores: Sequence[TaskScore]) -> Line:
    """The mean over tasks; each part of the score is averaged over the tasks that have it."""
    known = [one.score for one in scores if one.score is not None]
    total = mean(known) if len(known) == len(scores) else None
    accuracy, steps = dict(zip(GROUPS, numbers.PARALLELBENCH[method], strict=True))[name]
    extra = {one.task.split("/")[1]: one.score for one in scores}
    for part in dict.fromkeys(part for one in scores for part in one.parts):
        values = [one.parts[part] for one in scores if part in one.parts]
        sure = [value for value in values if value is not None]
        extra[part] = mean(sure) if sure and len(sure) == len(values) else None
    return Line(
        numbers.TITLES[method],
        GROUPS[name].title,
        sum(one.n for one in scores),
        {"score": total, "steps": mean([one.steps for one in scores])},
        {"score": accuracy, "steps": steps},
        extra,
    )
