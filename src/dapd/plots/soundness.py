"""Checks of traces before a page or a figure is computed from them.

A file of traces may have been edited, cut together or written by another program. What is wrong is reported here, with
its trace and step, and not by whichever line of the drawing code fails on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from dapd.errors import DapdError
from dapd.trace import Record, Trace


def check_traces(traces: Sequence[Trace]) -> None:
    """Refuse traces that are empty or malformed."""
    for number, trace in enumerate(traces, 1):
        _check_head(trace, f"trace {number}")
        if not trace.steps:
            raise DapdError(f"trace {number} is empty: nothing was decoded in it")
        left = set(trace.slots)
        for place, record in enumerate(trace.steps, 1):
            where = f"trace {number}, step {place}"
            _check_record(record, place, where)
            decided = [*record.positions, *record.tail]
            if len(set(decided)) < len(decided) or not left.issuperset(decided):
                raise DapdError(f"{where} decides a position twice, or one that was not masked")
            left.difference_update(decided)


def _check_head(trace: Trace, where: str) -> None:
    n = len(trace.canvas) if isinstance(trace.canvas, list) else 0
    _demand(where, "canvas", trace.canvas, _list_of(_is_id))
    _demand(where, "slots", trace.slots, _list_of(lambda slot: _is_count(slot) and slot < n))
    _demand(where, "slots", trace.slots, lambda slots: len(slots) > 0 and len(set(slots)) == len(slots))
    for name in ("mask_id", "eos_id"):
        _demand(where, name, getattr(trace, name), _is_id)
    _demand(where, "eot_id", trace.eot_id, lambda value: value is None or _is_id(value))
    _demand(where, "start", trace.start, _is_count)
    _demand(where, "open_ended", trace.open_ended, lambda value: isinstance(value, bool))
    _demand(where, "about", trace.about, lambda value: isinstance(value, dict) and all(map(_is_text, value)))
    _demand(where, "texts", trace.texts, lambda value: value is None or (_list_of(_is_text)(value) and len(value) == n))
    _demand(where, "steps", trace.steps, _list_of(lambda value: isinstance(value, Record)))


def _check_record(record: Record, number: int, where: str) -> None:
    _demand(where, "step", record.step, lambda value: _is_count(value) and value == number)
    _demand(where, "positions", record.positions, _list_of(_is_count))
    n = len(record.positions)
    _demand(where, "tokens", record.tokens, lambda value: _list_of(_is_id)(value) and len(value) == n)
    _demand(where, "confidences", record.confidences, lambda value: _list_of(_is_confidence)(value) and len(value) == n)
    for name in ("masks_left", "segments"):
        _demand(where, name, getattr(record, name), _is_count)
    _demand(where, "seconds", record.seconds, _is_number)
    _demand(where, "tail", record.tail, _list_of(_is_count))
    for name, form in (
        ("texts", lambda value: _list_of(_is_text)(value) and len(value) == n),
        ("edges", _list_of(lambda pair: _list_of(_is_count)(pair) and len(pair) == 2)),
        ("held", _list_of(lambda pair: isinstance(pair, list) and len(pair) == 2 and _is_held(*pair))),
        ("top", lambda value: _list_of(_list_of(_is_top_entry))(value) and len(value) == n),
    ):
        value = getattr(record, name)
        if value is not None:
            _demand(where, name, value, form)


def _demand(where: str, name: str, value: Any, form: Callable[[Any], bool]) -> None:
    if not form(value):
        words = repr(value)
        raise DapdError(
            f"{where}: {name} is {words[:60]}{'...' * (len(words) > 60)}, which no decoding can have written"
        )


def _list_of(form: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(form, value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_id(value: Any) -> bool:
    """Whether a value is a whole number that JavaScript holds exactly. A negative one stands for an unknown token."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53


def _is_count(value: Any) -> bool:
    return _is_id(value) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_confidence(value: Any) -> bool:
    """Whether a value is a number that is not negative: strategies call more than probabilities a confidence."""
    return _is_number(value) and value >= 0


def _is_held(position: Any, confidence: Any) -> bool:
    return _is_number(position) and position == int(position) and position >= 0 and _is_confidence(confidence)


def _is_top_entry(one: Any) -> bool:
    """Whether a value is a token, its log-probability and its text; the log-probability of a token that was ruled out
    is minus infinity."""
    if not isinstance(one, list) or len(one) != 3:
        return False
    return _is_id(one[0]) and (_is_number(one[1]) or one[1] == -math.inf) and _is_text(one[2])
