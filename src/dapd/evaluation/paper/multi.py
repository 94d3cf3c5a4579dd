"""The paper's table of the multi-question analysis, and the data behind its figure."""

from __future__ import annotations

from collections.abc import Sequence

from dapd.evaluation.multi_question import (
    METHODS,
    SWEEPS,
    Bundle,
    MethodResult,
    as_json,
    bundles,
    evaluate,
    read_questions,
    summarise,
)
from dapd.evaluation.multi_question.questions import BUNDLES, SEED
from dapd.evaluation.paper import numbers
from dapd.evaluation.paper.cells import LENGTH, Cell
from dapd.evaluation.paper.report import Line, Report
from dapd.evaluation.paper.study import Study
from dapd.settings import Setting, describe

FIGURE = "multi_behaviour"
TASK = "triviaqa"


def ask_all(study: Study) -> list[Bundle]:
    """The bundles: 500, or as many as the limit says."""
    return bundles(read_questions(study.data(TASK)), study.scope.limit or BUNDLES)


def multi(study: Study) -> Report:
    """Accuracy and steps of every method on five independent questions at a time, in one block."""
    study.only_llada("multi")
    methods = [method for method, _ in study.chosen((method, TASK) for method in numbers.MULTI)]
    prompts = ask_all(study)
    results: dict[str, MethodResult] = {}
    notes = [f"Our own draw of the bundles, seed {SEED}: the authors' is not published."]
    for method in methods:
        setting, results[method] = _best(study, method, prompts)
        if study.scope.sweep and method in SWEEPS:
            notes.append(f"{numbers.TITLES[method]}: the most accurate of its sweep is {describe(setting.strategy)}.")
    if not study.scope.sweep:
        notes.append("Baselines at values within the paper's sweeps, which does not name the best: --sweep runs all.")
    study.write_json(FIGURE, as_json(results))
    lines = [_line(method, result, study.scope.scaled(LENGTH)) for method, result in results.items()]
    return Report("multi", numbers.LABELS["multi"], tuple(lines), (*study.notes(), *notes))


def _best(study: Study, method: str, prompts: Sequence[Bundle]) -> tuple[Setting, MethodResult]:
    """The most accurate of the settings to be tried, fewer steps breaking a tie."""
    tried = SWEEPS.get(method, [METHODS[method]]) if study.scope.sweep else [METHODS[method]]
    results = [(setting, _one(study, method, setting, prompts)) for setting in tried]
    return max(results, key=lambda pair: (pair[1].accuracy, -pair[1].steps))


def _one(study: Study, method: str, setting: Setting, prompts: Sequence[Bundle]) -> MethodResult:
    study.tell(f"multi: {numbers.TITLES[method]}")
    plan = study.plan(setting, LENGTH)
    out = study.folder(Cell(method, "multi", setting, plan.length).key)
    records = evaluate(study.model, prompts, plan, out, progress=study.progress)
    return summarise(prompts, records, plan, out.relative_to(study.out))


def _line(method: str, result: MethodResult, n_new: int) -> Line:
    """Our numbers beside the paper's. Step-by-step decoding takes a pass for each of the `n_new` tokens, so that the
    speedup over it is known whether or not it is run."""
    accuracy, steps = numbers.MULTI[method]
    return Line(
        numbers.TITLES[method],
        "TriviaQA x 5",
        result.n_questions,
        {"accuracy": result.accuracy, "steps": result.steps, "speedup": n_new / result.steps},
        {"accuracy": accuracy, "steps": steps, "speedup": round(LENGTH / steps, 2)},
    )
