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
PLAIN = {
    "building NFA": "it uses what Rust's regex does not know, such as look-around, back-references or {,3}",
    "anchored universal start": "it holds ^ or $; leave them out, the whole text matches in any case",
    "word boundaries": "it holds \\b; leave it out",
    "incompatible with the regex": "a part of it can never match, such as a $ or an empty class of letters",
    "recusion": "a $ref leads to itself, or through too many others",
}
"""What the library says, in part, and what it means."""


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

    # Four things about the library have to be got around. It drops alternatives as soon as an earlier one matches
    # (`a|ab` would never be `ab`): with a mark behind the pattern, nothing matches before the mark. It also works out
    # where a match could begin later in a text, which takes forever for `N.{20}`: before the pattern stand three
    # marks, the first of which matches alone, and from there on what would begin later is dropped. It gives up at a
    # place for which the vocabulary has no token: every byte gets a token of its own, which is left out below. And a
    # bracket too many would close the group around the pattern: without a group around it, it is a mistake.
    size = task["vocab_size"]
    mark, eos, begin = size, size + 256, size + 257
    letters = {bytes([byte]): [size + byte] for byte in range(256)}
    pattern = expression(task)
    Index(f"|{pattern}", Vocabulary(eos, letters))
    vocabulary = {text.encode("latin-1"): ids for text, ids in task["tokens"] if "\0" not in text}
    for letter, ids in letters.items():
        vocabulary.setdefault(letter, []).extend(ids)
    vocabulary[b"\0" * 3] = [begin]
    index = Index(f"\\x00(?:\\x00\\x00(?:{pattern})\\x00|)", Vocabulary(eos, vocabulary))
    before = index.get_initial_state()
    table = index.get_transitions()
    sizes = np.fromiter(map(len, table.values()), np.int64, len(table))
    source = np.repeat(np.fromiter(table, np.int64, len(table)), sizes)
    token = np.fromiter((token for row in table.values() for token in row), np.int64, int(sizes.sum()))
    target = np.fromiter((state for row in table.values() for state in row.values()), np.int64, int(sizes.sum()))
    inside = (token < size) & (source != before)
    # A pattern may take the mark's byte for a letter (`.` does): it is the mark where the pattern is complete with it.
    final = np.fromiter(index.get_final_states(), np.int64)
    complete = (token == mark) & (source != before) & np.isin(target, final)
    out = io.BytesIO()
    np.savez(
        out,
        start=np.array(index.get_next_state(before, begin)),
        accepting=source[complete],
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
        said = next(iter(str(error).splitlines()), "it cannot be read")
        reason = fault(task["regex"]) or next((words for part, words in PLAIN.items() if part in said), said)
        print(reason, file=sys.stderr)
        sys.exit(MISTAKE)
    sys.stdout.buffer.write(written)


if __name__ == "__main__":
    main()
