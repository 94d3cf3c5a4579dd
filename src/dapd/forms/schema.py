"""Which JSON Schemas a text can be certain to keep.

A schema with a keyword that would be ignored is refused: the text might not keep what the schema promises.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dapd.errors import DapdError

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
    """Refuse a schema that cannot be kept; the error names the place of the fault (`where`)."""
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
            raise DapdError(f"{where}: {low} is {schema[low]} and {high} {schema[high]}; nothing is as long as that")
    if kind == "object":
        _check_object(schema, where, depth)
    if kind == "array" and "items" in schema:
        check_schema(schema["items"], f"{where}.items", depth + 1)
    if schema.get("format", "date") not in FORMATS:
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
    kind = schema.get("type")
    allowed = PYTHON.get(kind) if isinstance(kind, str) else None
    for value in values:
        if isinstance(value, dict | list):
            raise DapdError(f"{where}: only plain values may be listed, not {value!r}")
        if allowed is not None and (not isinstance(value, allowed) or (isinstance(value, bool) and kind != "boolean")):
            raise DapdError(f"{where}: the value {value!r} is not of type {kind}")


def _allow(keys: set[str], allowed: set[str], where: str) -> None:
    for name in sorted(keys - allowed):
        raise DapdError(f"{where}: {name!r} is not supported here; allowed: {', '.join(sorted(allowed | NOTES))}")
