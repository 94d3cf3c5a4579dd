"""An evaluation from start to table."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapd.evaluation.fingerprint import fingerprint
from dapd.evaluation.harness.code import CodeLimits, limited
from dapd.evaluation.harness.data import offline
from dapd.evaluation.harness.options import EvalOptions, TaskSummary
from dapd.evaluation.harness.prompts import chat_mode
from dapd.evaluation.harness.scoring import guarded, shares, summarise
from dapd.evaluation.harness.tasks import load_tasks, quiet, require_lm_eval
from dapd.evaluation.runs import Run
from dapd.evaluation.world import World
from dapd.generation import DiffusionLM
from dapd.settings import Setting, describe

if TYPE_CHECKING:
    from dapd.evaluation.harness.adapter import HarnessLM

SUMMARY, SCORES = "summary.json", "scores.json"


def evaluate(
    model: DiffusionLM,
    setting: Setting,
    tasks: Sequence[str],
    options: EvalOptions,
    out: Path,
    on_progress: Callable[[int], None] = lambda n: None,
) -> list[TaskSummary]:
    """Decode and score what `out` does not hold yet, and sum up; one summary per task, in the order asked for.

    Under `torchrun` or `accelerate launch` every process calls this and does its share; the first one scores, and all
    return the same summaries.
    """
    require_lm_eval()
    limits = CodeLimits(options.code_seconds, options.code_memory_mb)
    with offline(options.data_dir), quiet(), limited(limits):
        loaded = load_tasks(tasks, options)
        world = World.from_environment()
        run = Run.open(out, setup(model, setting, options), "run")
        from dapd.evaluation.harness.adapter import HarnessLM

        lm = HarnessLM(model, setting, options, run, world)
        lm.prefix = lambda request: str(loaded[request.task_name].doc_to_prefix(request.doc) or "")
        lm.on_progress = on_progress
        if world.rank == 0:
            summaries = _score(lm, loaded, options, run)
        else:
            summaries = []
            _contribute(lm, loaded, options)
        return world.gather(summaries)


def setup(model: DiffusionLM, setting: Setting, options: EvalOptions) -> dict[str, Any]:
    """The settings that must agree for answers to stand in one table. More documents and tasks may be added later."""
    return {
        "model": model.name,
        "weights": fingerprint(model),
        "strategy": describe(setting.strategy),
        "n_blocks": setting.n_blocks,
        **options.setup(),
        "chat": chat_mode(options.chat, model.tokenizer),
        "lm_eval": version("lm_eval"),
    }


def _prompting(lm: HarnessLM) -> dict[str, Any]:
    turns = lm.prompter.chat == "multi_turn"
    return {"apply_chat_template": turns, "fewshot_as_multiturn": turns}


def _score(lm: HarnessLM, tasks: Mapping[str, Any], options: EvalOptions, run: Run) -> list[TaskSummary]:
    from lm_eval.evaluator import evaluate as lm_evaluate

    with guarded(tasks, options.checker_seconds) as guards:
        results = lm_evaluate(
            lm,
            {"tasks": dict(tasks)},
            limit=options.limit,
            bootstrap_iters=0,
            confirm_run_unsafe_code=options.confirm_unsafe_code,
            **_prompting(lm),
        )
    summaries = []
    for name in tasks:
        docs = {sample["doc_id"] for sample in results["samples"][name]}
        records = [r for r in lm.ledger.held.values() if r["task"] == name and r["doc"] in docs]
        metrics = results["results"][name]
        in_percent = shares(tasks[name], metrics, results["samples"][name])
        summaries.append(summarise(name, metrics, records, in_percent))
    late = {name: len(guard.timed_out) for name, guard in guards.items() if guard.timed_out}
    scores = {name: [_scores(sample) for sample in results["samples"][name]] for name in tasks}
    _keep(run, summaries, scores, late)
    return summaries


def _keep(run: Run, summaries: Sequence[TaskSummary], scores: Mapping[str, Any], late: Mapping[str, int]) -> None:
    """Add the summaries and scores to those of other tasks; a summary of more documents is never replaced."""
    before = run.read(SUMMARY, {"tasks": [], "checker_timeouts": {}})
    tasks = {one["task"]: one for one in before["tasks"] if isinstance(one, dict) and {"task", "n"} <= one.keys()}
    timeouts = dict(before["checker_timeouts"])
    details = dict(run.read(SCORES, {}))
    for one in summaries:
        if one.n < tasks.get(one.task, {"n": 0})["n"]:
            continue
        tasks[one.task] = dataclasses.asdict(one)
        details[one.task] = scores[one.task]
        timeouts.pop(one.task, None)
        if one.task in late:
            timeouts[one.task] = late[one.task]
    run.write(SCORES, details)
    run.write(SUMMARY, {"tasks": list(tasks.values()), "checker_timeouts": timeouts})


def _scores(sample: Mapping[str, Any]) -> dict[str, Any]:
    return {"doc": sample["doc_id"], "filter": sample["filter"], **{m: sample[m] for m in sample["metrics"]}}


def _contribute(lm: HarnessLM, tasks: Mapping[str, Any], options: EvalOptions) -> None:
    """Do the share of a process that does not score: make the same requests in the same order as lm-eval does."""
    from lm_eval.evaluator_utils import get_sample_size

    requests: dict[str, list[Any]] = defaultdict(list)
    chat = {"chat_template": lm.apply_chat_template} if _prompting(lm)["apply_chat_template"] else {}
    for task in tasks.values():
        task.build_all_requests(limit=get_sample_size(task, options.limit), **_prompting(lm), **chat)
        for request in task.instances:
            requests[request.request_type] += [request] * request.repeats
    for kind, instances in requests.items():
        getattr(lm, kind)(instances)
