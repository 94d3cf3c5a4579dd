"""A process of its own that turns a pattern into an automaton over tokens, and may not take more than it is given.

A short pattern can stand for an automaton that no machine holds, and the library that builds it cannot be interrupted.
This file is run as a script, without the rest of the package. It reads one JSON object and writes arrays of numpy.
"""

from __future__ import annotations

import io
import json
import re
import sys
from typing import Any

MISTAKE = 3
"""Exit code for a pattern that is wrong; the reason stands on standard error."""
SHORT = {"d": "[0-9]", "w": "[0-9A-Za-z_]"}


def limit(seconds: int, memory: int) -> None:
    try:
        import resource
    except ImportError:  # no such limits on this system: the caller's clock is left
        return
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


def expression(task: dict[str, Any]) -> str:
    """The regular expression of a task; that of a schema means ASCII where it says digits."""
    if task["regex"] is not None:
        return str(task["regex"])
    from outlines_core.json_schema import build_regex_from_schema

    found = build_regex_from_schema(json.dumps(task["schema"]))
    return re.sub(r"\\(.)", lambda mark: SHORT.get(mark[1], mark[0]), found)


def automaton(task: dict[str, Any]) -> bytes:
    """Start, accepting states and transitions (state, token, next state), as arrays of numpy."""
    import numpy as np
    from outlines_core import Index, Vocabulary

    # Two things about the library have to be got around. It drops alternatives as soon as an earlier one matches
    # (`a|ab` would never be `ab`): with a mark behind the pattern, nothing matches before the mark. And it gives up at
    # a place for which the vocabulary has no token: every byte gets a token of its own, which is left out below.
    size = task["vocab_size"]
    mark, eos = size, size + 256
    vocabulary = {text.encode("latin-1"): ids for text, ids in task["tokens"] if "\0" not in text}
    for byte in range(256):
        vocabulary.setdefault(bytes([byte]), []).append(size + byte)
    index = Index(f"(?:{expression(task)})\\x00", Vocabulary(eos, vocabulary))
    table = index.get_transitions()
    sizes = np.fromiter(map(len, table.values()), np.int64, len(table))
    source = np.repeat(np.fromiter(table, np.int64, len(table)), sizes)
    token = np.fromiter((token for row in table.values() for token in row), np.int64, int(sizes.sum()))
    target = np.fromiter((state for row in table.values() for state in row.values()), np.int64, int(sizes.sum()))
    inside = token < size
    out = io.BytesIO()
    np.savez(
        out,
        start=np.array(index.get_initial_state()),
        accepting=source[token == mark],
        source=source[inside],
        token=token[inside],
        target=target[inside],
    )
    return out.getvalue()


def fault(regex: str | None) -> str | None:
    """What Python finds wrong with a regular expression, and where, which the library does not say; None: nothing."""
    try:
        re.compile(regex or "")
    except (re.error, OverflowError, RecursionError) as error:
        return f"it is not a valid regular expression: {error}"
    return None


def main() -> None:
    task = json.load(sys.stdin)
    limit(task["seconds"], task["memory"])
    try:
        written = automaton(task)
    except (ValueError, TypeError) as error:
        reason = fault(task["regex"]) or next(iter(str(error).splitlines()), "it cannot be read")
        print(reason, file=sys.stderr)
        sys.exit(MISTAKE)
    sys.stdout.buffer.write(written)


if __name__ == "__main__":
    main()
