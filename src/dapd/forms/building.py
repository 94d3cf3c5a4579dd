"""From a pattern to its language, within bounds of time and memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dapd.errors import DapdError, missing_extra
from dapd.forms import worker
from dapd.forms.automaton import Automaton
from dapd.forms.language import Language
from dapd.forms.schema import as_json, check_schema, spelled
from dapd.models.base import Profile


@dataclass(frozen=True)
class BuildLimits:
    """Limits on the time and memory that building one automaton may take, and on the sizes of pattern and automaton."""

    chars: int = 20_000
    """Characters of the pattern."""
    seconds: int = 60
    memory: int = 4 << 30
    """Address space, in bytes, of the process that builds it."""
    edges: int = 500_000
    """Edges between states. Every pass looks at all of them once for every position, and an automaton of this size
    takes about 25 MB for as long as a model keeps it."""


LIMITS = BuildLimits()
_running: set[subprocess.Popen[bytes]] = set()


def give_up() -> None:
    """End the building of all automata that are being built in this process, each with an error in its thread.

    A process that ends would otherwise wait for those threads.
    """
    for process in [*_running]:
        process.kill()


def build(
    tokens: Mapping[int, bytes],
    vocab_size: int,
    profile: Profile,
    *,
    regex: str | None = None,
    json_schema: Mapping[str, Any] | None = None,
    limits: BuildLimits = LIMITS,
) -> Language:
    """The language of a regular expression or a JSON Schema over a model's tokens: id -> the bytes it stands for."""
    if (regex is None) == (json_schema is None):
        raise DapdError("give either a regex or a json_schema")
    if find_spec("outlines_core") is None:
        raise missing_extra("outlines-core", "forms", "a prescribed form")
    if json_schema is not None:
        check_schema(json_schema)
    written = regex if regex is not None else as_json(json_schema)
    if not written or len(written) > limits.chars:
        raise DapdError(f"the pattern has {len(written)} characters; allowed: 1 to {limits.chars}")
    by_text: dict[str, list[int]] = {}
    for number, text in tokens.items():
        if text:
            by_text.setdefault(text.decode("latin-1"), []).append(number)
    task = {
        "regex": regex,
        "schema": None if json_schema is None else spelled(json_schema),
        "tokens": list(by_text.items()),
        "vocab_size": vocab_size,
        "seconds": limits.seconds,
        "memory": limits.memory,
    }
    ends = [end for end in (profile.eos_id, profile.eot_id) if end is not None]
    automaton = Automaton.of(_built(task, limits), vocab_size, ends)
    if len(automaton.source) > limits.edges:
        raise DapdError(f"the form is too complicated: {len(automaton.source)} edges; allowed: {limits.edges}")
    return Language(automaton)


def _built(task: dict[str, Any], limits: BuildLimits) -> dict[str, Any]:
    """Run the worker on a task and return the transitions that it finds, or raise an error that a user understands."""
    command = [sys.executable, "-I", "-W", "ignore", str(Path(worker.__file__))]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        _running.add(process)
        try:
            written, said = process.communicate(json.dumps(task).encode(), limits.seconds)
        except subprocess.TimeoutExpired:
            raise DapdError(f"the form is too complicated: it was not built within {limits.seconds} s") from None
        finally:
            process.kill()
            _running.discard(process)
    if process.returncode == worker.MISTAKE:
        what = "the pattern" if task["schema"] is None else "the schema"
        raise DapdError(f"{what} cannot be used: {said.decode(errors='replace').strip()[:300]}")
    if process.returncode != 0:
        raise DapdError(
            f"the form is too complicated: it takes more than {limits.memory >> 20} MB or too long to build"
        )
    return transitions(written, task["vocab_size"])


def transitions(written: bytes, vocab_size: int) -> dict[str, Any]:
    """Read the worker's output: the start, the accepting states, and the transitions of the vocabulary's tokens."""
    import numpy as np

    numbers = np.frombuffer(written, np.int64)
    n_states, n_edges, before, start = numbers[:4]
    names, sizes, token, target, final = np.split(numbers[4:], np.cumsum((n_states, n_states, n_edges, n_edges)))
    source = np.repeat(names, sizes)
    inside = (token < vocab_size) & (source != before)
    # Token `vocab_size` is the byte 0, with which the worker marks the end of the pattern. A pattern may also match
    # that byte as a letter (`.` does), so it is the mark only where it leads to a final state.
    complete = (token == vocab_size) & (source != before) & np.isin(target, final)
    return {
        "start": start,
        "accepting": source[complete],
        "source": source[inside],
        "token": token[inside],
        "target": target[inside],
    }
