"""The JSON Schemas that a text can be certain to match.

A schema with a keyword that would be ignored is refused: the text might not match the schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from dapd.errors import DapdError, first_line

NOTES = {"title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated"}
"""Keywords that say nothing about which values are valid."""
OF_TYPE = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "format"},
    "integer": set[str](),
    "number": set[str](),
    "boolean": set[str](),
    "null": set[str](),
}
DEFINITIONS = {"$defs", "definitions"}
KNOWN = {"$ref", "anyOf", "enum", "const", "type"}.union(*OF_TYPE.values())
FORMATS = {"date", "time", "date-time", "uuid"}
PYTHON = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
DEEPEST = 12
MOST = 10_000
"""The largest bound on lengths and numbers of items: the automaton has states for every repetition up to it."""


def check_schema(schema: object, where: str = "the schema", depth: int = 0) -> None:
    """Refuse a schema that no text can be certain to match; the error names the place of the fault (`where`)."""
    if not isinstance(schema, Mapping):
        raise DapdError(f"{where} is not a JSON object")
    if depth > DEEPEST:
        raise DapdError(f"{where} is nested more than {DEEPEST} levels deep")
    for name in DEFINITIONS & schema.keys():
        _check_each(schema[name], f"{where}.{name}", depth)
    keys = set(schema) - NOTES - DEFINITIONS
    _allow(keys, KNOWN, where)
    if "$ref" in keys:
        _allow(keys, {"$ref"}, where)
    elif "anyOf" in keys:
        _allow(keys, {"anyOf"}, where)
        if not isinstance(schema["anyOf"], list) or not schema["anyOf"]:
            raise DapdError(f"{where}.anyOf must be a list of schemas")
        for number, part in enumerate(schema["anyOf"]):
            check_schema(part, f"{where}.anyOf[{number}]", depth + 1)
    elif "enum" in keys or "const" in keys:
        _check_values(schema, keys, where)
    else:
        _check_type(schema, keys, where, depth)


def _check_type(schema: Mapping[str, Any], keys: set[str], where: str, depth: int) -> None:
    kind = schema.get("type")
    if isinstance(kind, list) and kind and all(isinstance(one, str) and one in OF_TYPE for one in kind):
        _allow(keys, {"type"}, f"{where} (with several types)")
        return
    if not isinstance(kind, str) or kind not in OF_TYPE:
        raise DapdError(f"{where} needs a type ({', '.join(OF_TYPE)}), anyOf, enum, const or $ref")
    _allow(keys, {"type", *OF_TYPE[kind]}, where)
    for name in ("minItems", "maxItems", "minLength", "maxLength"):
        bound = schema.get(name, 0)
        if not isinstance(bound, int) or isinstance(bound, bool) or not 0 <= bound <= MOST:
            raise DapdError(f"{where}.{name} is {bound!r}; allowed: 0 to {MOST}")
    for low, high in (("minItems", "maxItems"), ("minLength", "maxLength")):
        if schema.get(low, 0) > schema.get(high, MOST):
            raise DapdError(f"{where}: {low} is {schema[low]} and {high} {schema[high]}; no value has such a length")
    if kind == "object":
        _check_object(schema, where, depth)
    if kind == "array" and "items" in schema:
        check_schema(schema["items"], f"{where}.items", depth + 1)
    if "format" in schema:
        _allow(keys, {"type", "format"}, f"{where} (with a format)")
        if schema["format"] not in FORMATS:
            raise DapdError(f"{where}.format is {schema['format']!r}; allowed: {', '.join(sorted(FORMATS))}")


def _check_object(schema: Mapping[str, Any], where: str, depth: int) -> None:
    properties = schema.get("properties", {})
    _check_each(properties, f"{where}.properties", depth)
    if not isinstance(schema.get("additionalProperties", False), bool):
        raise DapdError(f"{where}.additionalProperties must be true or false")
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) and name in properties for name in required):
        raise DapdError(f"{where}.required must name properties of the object")


def _check_each(parts: object, where: str, depth: int) -> None:
    if not isinstance(parts, Mapping):
        raise DapdError(f"{where} is not a JSON object")
    for name, part in parts.items():
        check_schema(part, f"{where}.{name}", depth + 1)


def _check_values(schema: Mapping[str, Any], keys: set[str], where: str) -> None:
    _allow(keys, {"enum", "const", "type"} - ({"enum"} if "const" in keys else {"const"}), where)
    values = [schema["const"]] if "const" in keys else schema["enum"]
    if not isinstance(values, list) or not values:
        raise DapdError(f"{where}.enum must be a list of values")
    given = schema.get("type", list(OF_TYPE))
    kinds = given if isinstance(given, list) else [given]
    if not kinds or not all(isinstance(kind, str) and kind in OF_TYPE for kind in kinds):
        raise DapdError(f"{where}.type is {given!r}; allowed: {', '.join(OF_TYPE)}")
    for value in values:
        if not isinstance(value, str | int | float | None):
            raise DapdError(f"{where}: only plain values may be listed, not {value!r}")
        if not any(_is_of(value, kind) for kind in kinds):
            raise DapdError(f"{where}: the value {value!r} is not of type {' or '.join(kinds)}")
        if not _is_kept(value):
            raise DapdError(
                f"{where}: the number {value!r} cannot be written exactly; allowed: whole numbers of at most 64 bits, "
                "others of at most 15 digits"
            )


def _is_of(value: object, kind: str) -> bool:
    return isinstance(value, PYTHON[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _is_kept(value: object) -> bool:
    """Whether the library that writes the values of a schema writes this one as it is. It rounds long numbers."""
    if isinstance(value, float):
        return re.fullmatch(r"-?[0-9.]{1,16}", repr(value)) is not None
    return not isinstance(value, int) or -(2**63) <= value < 2**64


def _allow(keys: set[str], allowed: set[str], where: str) -> None:
    for name in sorted(keys - allowed):
        raise DapdError(f"{where}: {name!r} is not supported here; allowed: {', '.join(sorted(allowed | NOTES))}")


def spelled(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema that passed `check_schema`, in the form in which the library that makes a pattern of it needs it.

    The library writes the names of properties as they stand, without JSON's escapes, and knows an object that may have
    no properties by an empty list of them alone. Keywords that say nothing about values are left out, because they may
    be nested deeper than it can read.
    """
    out = {name: part for name, part in schema.items() if name not in NOTES}
    for name in DEFINITIONS & out.keys():
        out[name] = {key: spelled(part) for key, part in out[name].items()}
    if "anyOf" in out:
        out["anyOf"] = [spelled(part) for part in out["anyOf"]]
    if "items" in out:
        out["items"] = spelled(out["items"])
    if "properties" in out or out.get("additionalProperties") is False:
        out["properties"] = {_escaped(key): spelled(part) for key, part in out.get("properties", {}).items()}
    if "required" in out:
        out["required"] = [_escaped(key) for key in out["required"]]
    return out


def _escaped(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)[1:-1]


def as_json(schema: object) -> str:
    """A schema as text. A value that cannot be written as JSON, such as a class of `pydantic`, is a mistake."""
    try:
        return json.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise DapdError(f"the schema is not a JSON object: {first_line(error)}") from None
