"""Strategies by name: the presets, their fields from text, and the settings the paper used per model and task."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from dapd.errors import DapdError, unknown
from dapd.strategies import PRESETS, Dapd, EntropyBound, Klass, Strategy, Threshold, TopK


@dataclass(frozen=True)
class Setting:
    """A strategy and the number of blocks it is run with."""

    strategy: Strategy
    n_blocks: int = 1


def _llada(task: str) -> dict[str, Setting]:
    math = task in ("gsm8k", "math500")
    staged = {"gsm8k": 0.05, "math500": 0.05, "parallelbench": 0.2}.get(task, 0.15)
    direct = (0.005, 0.05) if math else (0.01, 0.02 if task == "mbpp" else 0.05)
    klass = {"gsm8k": (0.6, 0.015), "math500": (0.6, 0.01), "mbpp": (0.7, 0.01)}.get(task, (0.9, 0.01))
    # ParallelBench's own protocol decodes its short answers in one block.
    blocks = 1 if task == "parallelbench" else 4
    return {
        "original": Setting(TopK(), blocks),
        "fast-dllm": Setting(Threshold(0.9), blocks),
        "eb-sampler": Setting(EntropyBound(0.1), blocks),
        "klass": Setting(Klass(*klass), blocks),
        "dapd-staged": Setting(Dapd(0.01, staged)),
        "dapd-direct": Setting(Dapd(*direct, shortcut="direct")),
    }


def _dream(task: str) -> dict[str, Setting]:
    staged, direct = ((0.1, 0.5), (0.1, 0.5)) if task == "ifeval" else ((0.005, 0.05), (0.005, 0.01))
    klass = {"math500": (0.9, 0.005), "humaneval": (0.8, 0.001)}.get(task, (0.9, 0.001))
    return {
        "original": Setting(TopK()),
        "fast-dllm": Setting(Threshold(0.9)),
        "eb-sampler": Setting(EntropyBound(0.1)),
        "klass": Setting(Klass(*klass, inclusive=True)),
        "dapd-staged": Setting(Dapd(*staged)),
        "dapd-direct": Setting(Dapd(*direct, shortcut="direct")),
    }


TASKS = {
    "llada": ("humaneval", "mbpp", "gsm8k", "math500", "ifeval", "parallelbench"),
    "dream": ("humaneval", "mbpp", "gsm8k", "math500", "ifeval"),
}

PAPER: dict[str, Setting] = {
    f"{name}@{model}/{task}": setting
    for model, table in (("llada", _llada), ("dream", _dream))
    for task in TASKS[model]
    for name, setting in table(task).items()
}
"""The paper's settings: `dapd-staged@llada/gsm8k` and so on. DAPD's come from the paper; the baselines' from their own
papers and scripts. Where the paper chose a baseline's value by a sweep and does not say which it took (all of them on
IFEval), and for EB-Sampler's gamma throughout, these are the defaults."""


def setting(name: str, fields: Mapping[str, Any] | None = None) -> Setting:
    """A preset or one of the paper's settings by name, with some fields changed."""
    table = PAPER if "@" in name else {key: Setting(strategy) for key, strategy in PRESETS.items()}
    if name not in table:
        raise unknown("strategy" if table is not PAPER else "setting of the paper", name, table)
    found = table[name]
    return dataclasses.replace(found, strategy=changed(found.strategy, fields or {}))


def strategy(name: str, **fields: Any) -> Strategy:
    """A preset by name, with some fields changed: strategy("dapd-staged", tau_max=0.2)."""
    return setting(name, fields).strategy


def changed(strategy: Strategy, fields: Mapping[str, Any]) -> Strategy:
    """The strategy with some fields changed; values may be text, as from a command line."""
    return dataclasses.replace(strategy, **parsed(type(strategy), fields))


def parsed(kind: type, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Values for some fields of a dataclass, each of its field's type."""
    hints = get_type_hints(kind)
    allowed = [field.name for field in dataclasses.fields(kind)]
    for name in fields:
        if name not in allowed:
            raise unknown(f"field of {kind.__name__}", name, allowed)
    return {name: parse(name, value, hints[name]) for name, value in fields.items()}


def parse(name: str, value: Any, hint: Any) -> Any:
    """A value of the hinted type, from itself or from text."""
    for kind in _kinds(hint):
        try:
            return _as(value, kind)
        except DapdError:
            raise
        except (ValueError, OverflowError):
            continue
    allowed = " or ".join(_describe(kind) for kind in _kinds(hint))
    raise DapdError(f"{name} is {value!r}; it must be {allowed}")


def _kinds(hint: Any) -> tuple[Any, ...]:
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return tuple(sorted(kinds, key=lambda kind: kind is float))  # "4" is a layer index or a number before it is 4.0


def _as(value: Any, kind: Any) -> Any:
    text = value if isinstance(value, str) else None
    if get_origin(kind) is Literal:
        if value in get_args(kind):
            return value
    elif get_origin(kind) is tuple:
        item = get_args(kind)[0]
        if text is not None and ("," in text or item is str):
            return tuple(item(part.strip()) for part in text.split(",") if part.strip())
        if isinstance(value, list | tuple):
            return tuple(item(part) for part in value)
    elif kind is NoneType:
        if value is None or text in ("none", "None", "null"):
            return None
    elif kind is bool:
        if isinstance(value, bool):
            return value
        if text is not None and text.lower() in ("true", "false"):
            return text.lower() == "true"
    elif isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    elif kind is str:
        if text is not None:
            return text
    elif text is not None or (isinstance(value, int | float) and not isinstance(value, bool)):
        if math.isnan(float(value)) or (kind is int and float(value) != int(float(value))):
            raise ValueError
        return kind(value)
    raise ValueError


def _describe(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(get_args(kind))
    if get_origin(kind) is tuple:
        return "names" if get_args(kind)[0] is str else "whole numbers such as 4,5,6 (one alone: 4,)"
    names = {int: "a whole number", float: "a number", bool: "true or false", NoneType: "none", str: "text"}
    return names.get(kind, str(kind))


def describe(strategy: Any) -> dict[str, Any]:
    """The strategy as plain data: its class and its fields."""
    fields = (
        dataclasses.asdict(strategy) if dataclasses.is_dataclass(strategy) and not isinstance(strategy, type) else {}
    )
    return {"name": type(strategy).__name__, **fields}


def field_docs(kind: type) -> dict[str, str]:
    """The docstring line under each field of a dataclass."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs: dict[str, str] = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_text:
            docs[field.target.id] = " ".join(str(below.value.value).split())  # type: ignore[attr-defined]
    return docs
