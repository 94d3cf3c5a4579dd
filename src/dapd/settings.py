"""Strategies and loops by name: the presets, the settings the paper used per model and task, and fields from text."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict

from dapd.decoding.options import Options, Reuse
from dapd.decoding.sampling import EosPolicy, Sampling
from dapd.errors import DapdError, unknown
from dapd.io import own
from dapd.io.fields import check_fields, field_names, read, split_pair
from dapd.strategies import PRESETS, Dapd, EntropyBound, Klass, Selects, Threshold, TopK
from dapd.strategies.base import Precision

DEFAULT_STRATEGY = "dapd-direct"
"""Of the paper's two methods, the one that takes fewer passes on the lab's tasks: less than a third of the
other's on seven of the ten, and about as many on five free-form questions (docs/lab.md)."""

LOOP = (Sampling, Options)
"""The dataclasses whose fields are the settings of the loop."""
LOOP_FIELDS = frozenset(name for kind in LOOP for name in field_names(kind)) - {"sampling"}
"""The names of the loop's settings: the fields of its options and of their sampling."""


@dataclass(frozen=True)
class Setting:
    """A strategy and the number of blocks it is run with."""

    strategy: Selects
    n_blocks: int = 1

    def with_blocks(self, options: Options) -> Options:
        """The options with the setting's blocks, unless they have blocks of their own."""
        if options.n_blocks is not None:
            return options
        return replace(options, n_blocks=self.n_blocks if options.block_length is None else 1)


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


def setting(name: str) -> Setting:
    """A preset or one of the paper's settings by name."""
    table = PAPER if "@" in name else {key: Setting(strategy) for key, strategy in PRESETS.items()}
    if name not in table:
        raise unknown("setting of the paper" if "@" in name else "strategy", name, table)
    return table[name]


def strategy(name: str, **fields: Any) -> Selects:
    """A preset by name, with some fields changed: strategy("dapd-staged", tau_max=0.2)."""
    return changed(setting(name).strategy, fields)


def as_setting(strategy: str | Selects | Setting) -> Setting:
    """A setting from the name of a strategy or from an object with `select`; a setting is returned as it is."""
    if isinstance(strategy, Setting):
        return strategy
    return setting(strategy) if isinstance(strategy, str) else Setting(strategy)


def changed(strategy: Selects, fields: Mapping[str, Any]) -> Selects:
    """The strategy with some fields changed."""
    if not fields:
        return strategy
    kind = type(strategy)
    if not dataclasses.is_dataclass(strategy):
        raise DapdError(f"strategy {kind.__name__} has no fields to set; make it a dataclass")
    check_fields(kind, fields)
    return replace(strategy, **fields)


ARGUMENTS = (
    "strategy",
    "max_new_tokens",
    "batch_size",
    "fixed",
    "regex",
    "json_schema",
    "on_step",
    "streamer",
    "options",
)
"""Arguments of `generate` and its variants that are not settings of the loop. One that is misspelt, or that only
another variant takes, arrives among the settings, where this list identifies it."""


class LoopFields(TypedDict, total=False):
    """The fields of `Options` and `Sampling`, which may be given to `generate` and its variants directly."""

    block_length: int | None
    n_blocks: int | None
    reuse: Reuse | Literal["none", "prefix", "dual", "settled"]
    refresh: int | None
    refresh_until: int | None
    settle: int
    early_stop: bool
    eos_run: float | None
    confidence_dtype: Precision | None
    seed: int | tuple[int, ...]
    record_edges: bool
    record_top: int
    graphs: bool | None
    temperature: float
    top_p: float | None
    top_k: int | None
    tempered_confidence: bool
    eos: EosPolicy
    suppress: tuple[int, ...]
    bias: tuple[tuple[int, float], ...]


def with_fields(options: Options, fields: Mapping[str, Any]) -> Options:
    """Options with some fields, of their own or of their sampling, changed."""
    if not isinstance(options, Options):
        raise DapdError(f"options is {options!r}; give dapd.Options(...), or its fields directly")
    for name in fields:
        if name not in LOOP_FIELDS:
            raise _no_field_of_the_loop(name)
    sampling = {name: value for name, value in fields.items() if name in field_names(Sampling)}
    own = {name: value for name, value in fields.items() if name not in sampling}
    return replace(options, sampling=replace(options.sampling, **sampling), **own)


def _no_field_of_the_loop(name: str) -> DapdError:
    owner = next((key for key, preset in PRESETS.items() if name in field_names(type(preset))), None)
    if name in ARGUMENTS:
        return DapdError(f"this call takes no {name}")
    if owner is None:
        near = difflib.get_close_matches(name, [*LOOP_FIELDS, *ARGUMENTS], n=1)
        if near and near[0] in ARGUMENTS:
            return DapdError(f"unknown setting {name!r}; did you mean {near[0]!r}?")
        return unknown("setting", name, LOOP_FIELDS)
    return DapdError(f"{name} is a field of a strategy: give strategy=dapd.strategy({owner!r}, {name}=...)")


def split_spec(spec: str) -> tuple[str, dict[str, str]]:
    """Split `NAME` or `NAME:field=value,...` of a command line into the name and the values of the fields, as text."""
    before = spec.partition("=")[0]
    name, colon, _ = before.rpartition(":")
    if not colon or before == spec:
        return spec, {}
    rest = spec.removeprefix(f"{name}:")
    return name, dict(split_pair(part, f"in {spec!r},") for part in rest.split(",") if part)


def named(name: str) -> Setting:
    """A setting by its name on the command line: one that `setting` knows, or a strategy of the user's own."""
    if not own.is_own(name):
        _check_spec(name)
        return setting(name)
    try:
        strategy = own.make(name)
    except own.NoModuleError:
        _check_spec(name)
        raise
    if isinstance(strategy, Setting):
        return strategy
    if not callable(getattr(strategy, "select", None)):
        raise DapdError(f"{name} is not a strategy: it has no method `select`; see docs/strategies.md")
    return Setting(strategy)


def _check_spec(name: str) -> None:
    """Refuse the name of a setting that is followed by a field without a value: `fast-dllm:threshold`."""
    known, colon, field = name.partition(":")
    if colon and (known in PRESETS or known in PAPER):
        split_pair(field, f"in {name!r},")


def read_settings(spec: str, pairs: Iterable[str], usual: Options | None = None) -> tuple[Setting, Options]:
    """Strategy and options from `NAME:field=value,...` and further `field=value` texts.

    Each field is set on the strategy or on the loop, whichever has it. Settings of the loop that are not named are as
    in `usual`.
    """
    name, texts = split_spec(spec)
    chosen = named(name)
    texts |= dict(split_pair(pair, "--set") for pair in pairs)
    kind = type(chosen.strategy)
    plain = "" if dataclasses.is_dataclass(kind) else f" ({kind.__name__} has no fields to set; make it a dataclass)"
    fields, loop = route(texts, [kind, LOOP], f"field of {name} or of the loop{plain}")
    return replace(chosen, strategy=changed(chosen.strategy, fields)), with_fields(usual or Options(), loop)


def route(
    texts: Mapping[str, str], owners: Sequence[type | Sequence[type]], what: str, hidden: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Texts read as the fields of several dataclasses: each belongs to the first owner that has a field of that name.

    An owner is one dataclass or several that are set together. `hidden` names fields that may not be set this way;
    `what` is what the error calls such a field.
    """
    groups = [owner if isinstance(owner, Sequence) else (owner,) for owner in owners]
    values: list[dict[str, Any]] = [{} for _ in groups]
    allowed = {name for group in groups for kind in group for name in field_names(kind)} - {"sampling", *hidden}
    for name, text in texts.items():
        if name not in allowed:
            raise unknown(what, name, allowed)
        place, kind = next((i, k) for i, group in enumerate(groups) for k in group if name in field_names(k))
        values[place] |= read(kind, {name: text})
    return values


def describe(strategy: Selects) -> dict[str, Any]:
    """The strategy as plain data: its class and its fields."""
    return {"name": type(strategy).__name__, **fields_of(strategy)}


def fields_of(strategy: Selects) -> dict[str, Any]:
    """The fields of a strategy with their values; none where it is not a dataclass."""
    return {name: getattr(strategy, name) for name in field_names(type(strategy))}
