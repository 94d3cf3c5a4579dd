"""Answers to requests that cannot be served: JSON in OpenAI's form, without any internals of the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from dapd.errors import DapdError
from dapd.server.engine import BusyError, ClosedError
from dapd.server.jobs import Reason

FAULTS: dict[Reason, tuple[int, str]] = {
    "fault": (500, "the server could not decode this text"),
    "timeout": (504, "the request took longer than its time limit"),
    "closed": (503, "the server is shutting down"),
    "gone": (499, "the client left"),
}
KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
WORDS = 500
"""Most characters of an error message, which may quote what a client wrote."""


PLAIN = {
    "Not Found": "there is no such path; send prompts to /v1/chat/completions, /v1/completions or /v1/infill; "
    "/openapi.json lists all paths",
    "There was an error parsing the body": "the body cannot be read as JSON: it is nested too deep, "
    "has too long a number, or is not UTF-8",
    "extra_forbidden": "there is no such field",
    "missing": "this field is needed",
    "string_type": "it must be a string",
    "bool_type": "it must be true or false",
    "int_type": "it must be a whole number",
    "float_type": "it must be a number",
    "list_type": "it must be a list",
    "dict_type": "it must be a JSON object",
    "model_type": "it must be a JSON object",
    "model_attributes_type": "it must be a JSON object",
}
"""A library's message, or its name for a kind of mistake -> the words that the author of the request gets."""


class MistakeError(DapdError):
    """A mistake of the client's in one parameter."""

    def __init__(self, param: str, message: str, status: int = 400, code: str | None = None) -> None:
        super().__init__(message.replace("max_new_tokens", "max_tokens"))  # the name that clients know it by
        self.param = param
        self.status = status
        self.code = code


def body(status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """An error as OpenAI's clients read it."""
    kind = KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    clean = message.encode("utf-8", "replace").decode()
    shown = clean if len(clean) <= WORDS else f"{clean[:WORDS]}..."
    return {"error": {"message": shown, "type": kind, "param": param, "code": code}}


def answer(
    status: int,
    message: str,
    param: str | None = None,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    return JSONResponse(body(status, message, param, code), status, headers)


async def on_validation(_: Request, error: Exception) -> JSONResponse:
    """Answer with the most specific error in a body: a wrong value before a wrong type, then the one deepest inside.

    For a value that has none of the types that its field allows, the answer names all of these types.
    """
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    first = max(found, key=lambda one: (not one["type"].endswith("_type"), len(one["loc"])))
    if first["type"] == "json_invalid":
        return answer(400, "the body is not JSON")
    if first["type"] in ("model_attributes_type", "model_type", "missing") and len(first["loc"]) == 1:
        return answer(400, "the body must be a JSON object, sent with Content-Type: application/json")
    place = [str(part) for part in first["loc"] if part != "body"]
    param = _spoken(place)
    if first["type"] == "clash":
        return answer(400, first["msg"], first["ctx"]["param"])
    alike = [one for one in found if one["type"].endswith("_type") and one["loc"][:-1] == first["loc"][:-1]]
    said = " or ".join(dict.fromkeys(_plain(one) for one in (alike if first in alike and len(place) > 1 else [first])))
    return answer(400, f"{param}: {said}" if param else f"the body: {said}", param)


async def on_mistake(_: Request, error: Exception) -> JSONResponse:
    if isinstance(error, BusyError):
        return answer(429, str(error), headers={"Retry-After": str(error.retry_after)})
    if isinstance(error, ClosedError):
        return answer(503, str(error), headers={"Retry-After": "5"})
    if isinstance(error, MistakeError):
        return answer(error.status, str(error), error.param, error.code)
    return answer(400, str(error))


async def on_http(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    detail = PLAIN.get(str(error.detail), str(error.detail))
    allowed = (error.headers or {}).get("Allow")
    return answer(error.status_code, detail if allowed is None else f"use {allowed}", headers=error.headers)


def _plain(one: Mapping[str, Any]) -> str:
    return PLAIN.get(one["type"], str(one["msg"]))


def _spoken(place: Sequence[str]) -> str | None:
    """The name of a field, without the types of a union that were tried for it."""
    fields = [part for part in place if part.isidentifier() or part.isdigit()]
    kinds = {"str", "int", "float", "bool", "list", "StrategyChoice", "constrained"}
    named = [part for part in fields if part not in kinds]
    return ".".join(named) or None
