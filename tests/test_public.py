"""The names that the package exports, and that a user can name every type that an exported interface mentions."""

from __future__ import annotations

import dataclasses
import inspect
import re
import tomllib
import types
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

import dapd

NAMES = [
    "PAPER",
    "PRESETS",
    "AttentionNeed",
    "ByteTokenizer",
    "Canvas",
    "Capture",
    "Completion",
    "Dapd",
    "DapdError",
    "Dawn",
    "Decoder",
    "DiffusionLM",
    "DistanceGraph",
    "DreamSchedule",
    "EntropyBound",
    "Factor",
    "KVCache",
    "Klass",
    "LocalLeap",
    "MaskedLM",
    "Needs",
    "Observation",
    "Options",
    "Prediction",
    "Profile",
    "Progress",
    "Recordings",
    "Reuse",
    "Sampling",
    "Selection",
    "Selects",
    "Setting",
    "ShuffledGraph",
    "Span",
    "Step",
    "Strategy",
    "StrategyContractError",
    "Threshold",
    "Tokenizer",
    "TopK",
    "Trace",
    "TransformerConfig",
    "decode",
    "load",
    "random",
    "read_traces",
    "setting",
    "strategy",
    "write_traces",
]


def test_the_exported_names() -> None:
    """A name that comes or goes is a decision: this list changes with the changelog."""
    assert sorted(dapd.__all__) == sorted(NAMES)
    assert all(hasattr(dapd, name) for name in NAMES)


def test_nothing_but_names_of_the_package_is_in_sight() -> None:
    strangers = [name for name in vars(dapd) if not name.startswith("_") and name not in dapd.__all__]
    assert all(isinstance(getattr(dapd, name), types.ModuleType) for name in strangers), strangers


def mentioned(annotation: object) -> Iterator[type]:
    """Every class of ours inside of an annotation."""
    if isinstance(annotation, type) and annotation.__module__.startswith("dapd"):
        yield annotation
    for part in typing.get_args(annotation):
        yield from mentioned(part)


def signatures(cls: type) -> Iterator[object]:
    """What the fields, properties and methods of an interface take and give."""
    if dataclasses.is_dataclass(cls):
        yield from typing.get_type_hints(cls).values()
    for name, member in vars(cls).items():
        if name.startswith("_") and name != "__call__":
            continue
        function = member.fget if isinstance(member, property) else member
        if isinstance(function, types.FunctionType):
            yield from typing.get_type_hints(function).values()


@pytest.mark.parametrize("cls", [dapd.MaskedLM, dapd.Selects, dapd.Strategy, dapd.Observation, dapd.Needs])
def test_what_an_interface_mentions_is_exported(cls: type) -> None:
    """Who writes a model or a strategy of their own needs the names in these signatures."""
    used = {one.__name__ for annotation in signatures(cls) for one in mentioned(annotation)}
    assert used <= set(dapd.__all__)
    assert used, "the test looks at something"


@pytest.mark.parametrize("method", ["generate", "generate_batch", "infill", "infill_batch", "stream"])
def test_every_option_of_a_verb_is_a_typed_keyword(method: str) -> None:
    """A type checker knows them: none is hidden in untyped keywords."""
    for parameter in inspect.signature(getattr(dapd.DiffusionLM, method)).parameters.values():
        if parameter.name != "self":
            assert parameter.annotation is not inspect.Parameter.empty
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            assert re.match(r"(typing\.)?Unpack\[", str(parameter.annotation))


def test_a_source_archive_has_what_its_pages_speak_of() -> None:
    """The first command of README and CONTRIBUTING is make, which reads constraints.txt."""
    settings = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    packed = set(settings["tool"]["hatch"]["build"]["targets"]["sdist"]["include"])
    assert packed >= {"Makefile", "constraints.txt", "README.md", "CONTRIBUTING.md", "LICENSE", "docs", "examples"}
