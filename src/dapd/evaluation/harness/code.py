"""Running code that a model wrote: lm-eval's code metric, judged in `dapd.sandbox`."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from dapd.errors import DapdError
from dapd.sandbox import Limits, Verdict, judge


@dataclass(frozen=True)
class CodeLimits:
    """The time and memory that one piece of code may use."""

    seconds: float = 10.0
    """Wall time that one program may take."""
    memory_mb: int = 1024


_limits: ContextVar[CodeLimits] = ContextVar("limits")


@contextlib.contextmanager
def limited(limits: CodeLimits) -> Iterator[None]:
    """Code that is run inside has these limits."""
    token = _limits.set(limits)
    try:
        yield
    finally:
        _limits.reset(token)


def verdict(program: str, test: str) -> Verdict:
    """Judge a program by its test, within the limits that `limited` has set."""
    limits = _limits.get(CodeLimits())
    return judge(program, test, seconds=limits.seconds, limits=Limits(memory_mb=limits.memory_mb))


class CodeEval:
    """Stands in for the hub's `code_eval` metric, which lm-eval's HumanEval and MBPP fetch when they are imported."""

    def compute(
        self, references: Sequence[str], predictions: Sequence[Sequence[str]], k: Sequence[int] = (1,), **_: Any
    ) -> tuple[dict[str, float], dict[int, list[str]]]:
        """The mean pass@k over the problems, and for each problem the outcomes of its candidates."""
        verdicts = {
            number: [verdict(candidate, test) for candidate in candidates]
            for number, (test, candidates) in enumerate(zip(references, predictions, strict=True))
        }
        counts = [(len(ours), sum(one.passed for one in ours)) for ours in verdicts.values()]
        rates = {f"pass@{n}": sum(pass_at(n, *count) for count in counts) / len(counts) for n in k}
        return rates, {number: [one.reason for one in ours] for number, ours in verdicts.items()}


def pass_at(k: int, total: int, passed: int) -> float:
    """The chance that k of the candidates, drawn without replacement, hold one that passes."""
    if k > total:
        raise DapdError(f"pass@{k} needs {k} candidates of every problem, but one has {total}: ask for more repeats")
    if total - passed < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / n for n in range(total - passed + 1, total + 1))


class Metrics(ModuleType):
    """Stands in for the hub's library of metrics, which takes seconds to import. The code metric is `CodeEval`; the
    library itself is imported only when something else is needed from it."""

    NAME = "evaluate"

    def __init__(self) -> None:
        super().__init__(self.NAME)
        self.__spec__ = find_spec(self.NAME)
        if self.__spec__ is None:
            raise ModuleNotFoundError(f"No module named {self.NAME!r}")
        self.library = sys.modules.get(self.NAME)

    def load(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return CodeEval() if name == "code_eval" else self.__getattr__("load")(name, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if self.library is None:
            del sys.modules[self.NAME]
            try:
                self.library = import_module(self.NAME)
            finally:
                sys.modules[self.NAME] = self
        return getattr(self.library, name)


@contextlib.contextmanager
def local_code_eval() -> Iterator[None]:
    """Inside, loading the hub's code metric gives `CodeEval`."""
    metrics = Metrics()
    sys.modules[metrics.NAME] = metrics
    try:
        yield
    finally:
        del sys.modules[metrics.NAME]
        if metrics.library is not None:
            sys.modules[metrics.NAME] = metrics.library
