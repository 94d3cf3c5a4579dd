"""Scorers that cannot hang a run, and the numbers of a task."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from dapd.errors import DapdError
from dapd.evaluation.harness.options import TaskSummary
from dapd.evaluation.harness.tasks import main_metric
from dapd.evaluation.runs import Record

Scorer = Callable[[Any, Any], dict[str, Any]]


class Guard:
    """A scorer in a process of its own, which is ended when an answer takes too long; that answer is then scored as an
    empty one."""

    def __init__(self, score: Scorer, seconds: float, name: str) -> None:
        self.score = score
        self.seconds = seconds
        self.name = name
        self.timed_out: list[Any] = []
        self.process: BaseProcess | None = None
        self.line: Connection | None = None

    def __call__(self, doc: Any, results: Any) -> dict[str, Any]:
        scores = self._ask(doc, results)
        if scores is None:
            self.timed_out.append(doc)
            scores = self._ask(doc, [_nothing(result) for result in results])
        if scores is None:
            raise DapdError(f"the scorer of {self.name} takes longer than {self.seconds:g} s even for an empty answer")
        return scores

    def close(self) -> None:
        if self.process is not None and self.line is not None:
            self.line.close()
            self.process.kill()
            self.process.join()
        self.process = self.line = None

    def _ask(self, doc: Any, results: Any) -> dict[str, Any] | None:
        line = self.line or self._start()
        line.send((doc, results))
        try:
            if not line.poll(self.seconds):
                self.close()
                return None
            reply = line.recv()
        except EOFError:  # it ran out of memory, or something it loaded crashed
            self.close()
            return None
        if isinstance(reply, Exception):
            raise DapdError(f"the scorer of {self.name} cannot read a document or its answer: {reply}")
        scores: dict[str, Any] = reply
        return scores

    def _start(self) -> Connection:
        # Forked, because tasks hold functions that cannot be sent to a new interpreter.
        context = multiprocessing.get_context("fork")
        self.line, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(self.score, theirs, self.line), daemon=True)
        self.process.start()
        theirs.close()
        return self.line


def _serve(score: Scorer, line: Connection, other_end: Connection) -> None:
    other_end.close()
    while True:
        try:
            doc, results = line.recv()
        except EOFError:
            return
        try:
            line.send(score(doc, results))
        except Exception as error:
            line.send(RuntimeError(f"{type(error).__name__}: {error}"))


def _nothing(result: Any) -> Any:
    if isinstance(result, str):
        return ""
    return [_nothing(part) for part in result] if isinstance(result, list) else result


@contextmanager
def guarded(tasks: Mapping[str, Any], seconds: float) -> Iterator[dict[str, Guard]]:
    """Inside, the tasks' scorers run guarded."""
    guards = {name: Guard(task.process_results, seconds, name) for name, task in tasks.items()}
    for name, task in tasks.items():
        task.process_results = guards[name]
    try:
        yield guards
    finally:
        for name, task in tasks.items():
            guards[name].close()
            del task.process_results


def shares(task: Any, metrics: Mapping[str, Any], samples: Sequence[Mapping[str, Any]]) -> set[str]:
    """Those of a task's metrics that can be given in percent: means over its documents of scores from 0 to 1.

    A metric for which the task names no other way is a mean.
    """
    from lm_eval.api.metrics import mean

    combined = task.aggregation()
    keys = {name: name.partition(",")[0] for name in metrics}
    averaged = {name: key for name, key in keys.items() if combined.get(key, mean) is mean}
    return {name for name, key in averaged.items() if all(0 <= one[key] <= 1 for one in samples if key in one)}


def summarise(
    task: str, metrics: Mapping[str, Any], records: Sequence[Record], in_percent: Collection[str]
) -> TaskSummary:
    """The numbers of one task from lm-eval's metrics and the records of its documents; `in_percent` names the metrics
    that are given in percent."""
    scores = {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and "," in name and "_stderr" not in name
    }
    chosen = main_metric(task, scores)
    total = {key: sum(r[key] for r in records) for key in ("nfe", "tokens", "seconds")}
    texts = [r for r in records if r["kind"] == "generate"]
    total |= {key: sum(r[key] for r in texts) for key in ("fast_dllm_tokens", "prompt_tokens", "loop_seconds")}
    seconds = total["seconds"]
    loop = total["loop_seconds"]
    prompt = total["prompt_tokens"] if task.startswith("humaneval") else 0
    n = len({r["doc"] for r in records})
    return TaskSummary(
        task=task,
        n=n,
        accuracy=(100 if chosen in in_percent else 1) * scores.get(chosen, float("nan")),
        in_percent=chosen in in_percent,
        metric=chosen,
        metrics=scores,
        nfe=total["nfe"] / max(1, len(records)),
        tokens_per_forward=total["tokens"] / max(1, total["nfe"]),
        tps=total["tokens"] / seconds if seconds else 0.0,
        tps_fast_dllm=total["fast_dllm_tokens"] / loop if loop else 0.0,
        tps_fast_dllm_2025=(total["fast_dllm_tokens"] + prompt) / loop if loop else 0.0,
        seconds=seconds,
    )
