"""Where two decodings of one canvas part: the first thing to know when two runs do not agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from dapd.errors import DapdError
from dapd.evaluation.runs import disagreements
from dapd.trace import Record, Trace


@dataclass(frozen=True)
class Decision:
    """A token that a pass put at a position."""

    token: int
    text: str | None
    """None: the trace has no texts."""
    confidence: float | None
    """None: an early stop filled the position."""


@dataclass(frozen=True)
class Parting:
    """The first pass whose decisions differ between two decodings."""

    step: int
    """The number of the pass, from 1 on."""
    decisions: dict[int, tuple[Decision | None, Decision | None]]
    """Position -> the decisions of the first and the second decoding, where they differ; None: the position was left
    as it was."""


@dataclass(frozen=True)
class Likeness:
    """How far two decodings agree."""

    parting: Parting | None
    """None: all passes decided the same."""
    drift: float
    """The largest difference between the confidences of one token, over the passes that decided the same."""
    tokens: int
    """Number of slots in which the two decodings end with different tokens."""


def likeness(first: Trace, second: Trace) -> Likeness:
    """Compare two decodings of the same canvas, pass by pass."""
    if (first.canvas, first.slots) != (second.canvas, second.slots):
        raise DapdError("the decodings start from different canvases: another prompt, other lengths or another model")
    drift = 0.0
    parting = None
    for step, pair in enumerate(zip_longest(first.steps, second.steps), 1):
        ours, theirs = (_decisions(record, first.eos_id) for record in pair)
        differ = {at: (ours.get(at), theirs.get(at)) for at in sorted({*ours, *theirs}) if not _same(at, ours, theirs)}
        if differ:
            parting = Parting(step, differ)
            break
        drift = max([drift, *(abs((ours[at].confidence or 0) - (theirs[at].confidence or 0)) for at in ours)])
    tokens = sum(one != other for one, other in zip(first.generated_ids, second.generated_ids, strict=True))
    return Likeness(parting, drift, tokens)


def settings_apart(first: Trace, second: Trace) -> dict[str, tuple[Any, Any]]:
    """The settings that differ between two traces, apart from the prompt: name -> the two values."""
    return {name: values for name, values in disagreements(first.about, second.about).items() if name != "prompt"}


def _decisions(record: Record | None, eos_id: int) -> dict[int, Decision]:
    """The decisions of a pass by position; the positions that an early stop filled count as EOS."""
    if record is None:
        return {}
    committed = {
        at: Decision(token, None if record.texts is None else record.texts[place], record.confidences[place])
        for place, (at, token) in enumerate(zip(record.positions, record.tokens, strict=True))
    }
    return committed | {at: Decision(eos_id, None, None) for at in record.tail}


def _same(at: int, ours: Mapping[int, Decision], theirs: Mapping[int, Decision]) -> bool:
    return at in ours and at in theirs and ours[at].token == theirs[at].token
