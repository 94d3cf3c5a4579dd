"""Fields of a dataclass: values of the right type, values read from text, and the sentence that explains a field."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import re
import textwrap
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from dapd.errors import DapdError, unknown


def check_types(instance: Any) -> None:
    """Refuse an instance with a value that does not have its field's type. Text is not converted here: see `read`."""
    check_fields(type(instance), {name: getattr(instance, name) for name in field_names(instance)})


def check_type(name: str, value: Any, hint: Any) -> None:
    """Refuse a value that is not of the hinted type."""
    if not any(_is(value, kind) for kind in _kinds(hint)):
        raise _wrong(name, value, hint)


def check_fields(kind: type, values: Mapping[str, Any]) -> None:
    """Refuse names that are not fields of the dataclass, and values of another type."""
    check_names(kind, values)
    hints = _hints(kind)
    for name, value in values.items():
        check_type(name, value, hints[name])


def field_names(kind: Any) -> list[str]:
    """The names of a dataclass's fields; none for any other class."""
    return [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []


def check_names(kind: type, names: Iterable[str]) -> None:
    """Refuse names that are not fields of the dataclass."""
    allowed = field_names(kind)
    for name in names:
        if name not in allowed:
            raise unknown(f"field of {kind.__name__}", name, allowed)


def read(kind: type, texts: Mapping[str, str]) -> dict[str, Any]:
    """Values for some fields of a dataclass, from text as it stands on a command line."""
    check_names(kind, texts)
    hints = _hints(kind)
    return {name: read_as(name, text, hints[name]) for name, text in texts.items()}


def read_as(name: str, text: str, hint: Any) -> Any:
    """A value of the hinted type from text."""
    for kind in _kinds(hint):
        try:
            return _read(text, kind)
        except (ValueError, OverflowError) as error:
            if isinstance(error, DapdError):
                raise
    raise _wrong(name, text, hint)


def split_pair(pair: str, what: str) -> tuple[str, str]:
    """Split `field=value` into its two parts; `what` names the pair in the error message."""
    name, equals, value = pair.partition("=")
    if not equals or not name.strip():
        raise DapdError(f"{what} {pair!r} is not of the form field=value")
    return name.strip(), value


def explain(kind: type) -> dict[str, str]:
    """The docstring under each field of a dataclass, inherited fields included."""
    docs: dict[str, str] = {}
    for level in reversed(kind.__mro__):
        if dataclasses.is_dataclass(level):
            docs.update(_own_docs(level))
    return {field.name: docs[field.name] for field in dataclasses.fields(kind) if field.name in docs}


@cache
def _hints(kind: type) -> dict[str, Any]:
    """The types of a dataclass's fields. They are cached because resolving them takes far longer than checking values
    against them, and options are made for every row."""
    return get_type_hints(kind)


def _own_docs(kind: type) -> dict[str, str]:
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):  # classes made at run time have no source
        return {}
    body = ast.parse(textwrap.dedent(source)).body[0]
    assert isinstance(body, ast.ClassDef)
    docs: dict[str, str] = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_text:
            docs[field.target.id] = " ".join(str(below.value.value).split())  # type: ignore[attr-defined]
    return docs


def _kinds(hint: Any) -> tuple[Any, ...]:
    """The types of a union; floats come last, so that "4" is read as a whole number where that is allowed."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return tuple(sorted(kinds, key=lambda kind: kind is float))


def _is(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) is tuple:
        kinds = get_args(kind)
        if kinds[-1] is not Ellipsis:
            return isinstance(value, tuple) and len(value) == len(kinds) and all(map(_is, value, kinds))
        return isinstance(value, tuple) and all(_is(item, kinds[0]) for item in value)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
    if kind is int:
        # Tensors hold 64-bit integers: a larger number would fail only later, deep inside the program.
        return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    return not isinstance(kind, type) or isinstance(value, kind)


def _read(text: str, kind: Any) -> Any:
    if get_origin(kind) is Literal and text in get_args(kind):
        return text
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        if get_origin(item) is tuple:  # 5:1.5,7:-2 are pairs
            pairs = [part.split(":") for part in re.split("[,+]", text) if part.strip()]
            return tuple(tuple(k(x) for k, x in zip(get_args(item), pair, strict=True)) for pair in pairs)
        if "," in text or "+" in text or item is str:
            # In a sweep (`knob=a/b,other=c`) commas and slashes have a meaning already, so a plus sign separates too.
            return tuple(item(part.strip()) for part in re.split("[,+]", text) if part.strip())
    if kind is NoneType and text in ("none", "None", "null"):
        return None
    if kind is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind is str:
        return text
    if kind is int and float(text) == int(float(text)):
        return int(text) if text.strip().lstrip("+-").isdigit() else int(float(text))
    if kind is float and not math.isnan(float(text)):
        return float(text)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(text)
    raise ValueError(text)


def _wrong(name: str, value: Any, hint: Any) -> DapdError:
    if isinstance(value, int) and abs(value) >= 2**63:
        return DapdError(f"{name} is {value}; whole numbers have at most 64 bits")
    allowed = " or ".join(_describe(kind) for kind in _kinds(hint))
    return DapdError(f"{name} is {value!r}; it must be {allowed}")


def _describe(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    if get_origin(kind) is tuple:
        if get_origin(get_args(kind)[0]) is tuple:
            return "pairs such as 5:1.5,7:-2"
        return "names" if get_args(kind)[0] is str else "whole numbers such as 4,5,6 (one alone: 4,)"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "one of " + ", ".join(str(member.value) for member in kind)
    names = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        NoneType: "none",
        str: "text",
    }
    return names.get(kind, str(kind))
