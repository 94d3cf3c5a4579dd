"""The script that turns a pattern into an automaton over tokens, in a process with limits of time and memory.

A short pattern can stand for an automaton that no machine holds, and the library that builds it cannot be interrupted.
The script runs without the rest of the package and without numpy, which takes longer to load than most patterns take
to build. It reads one JSON object and writes integers of 64 bits.
"""

from __future__ import annotations

import json
import re
import sys
from array import array
from typing import Any

MISTAKE = 3
"""Exit code for a pattern that is wrong; the reason is written to standard error."""
SHORT = {"d": "[0-9]", "w": "[0-9A-Za-z_]"}
PLAIN = {
    "building NFA": "it uses a feature that Rust's regex does not have, such as look-around, back-references or {,3}",
    "anchored universal start": "it holds ^ or $; leave them out: the whole text is matched in any case",
    "word boundaries": "it holds \\b; leave it out",
    "incompatible with the regex": "a part of it can never match, such as a $ or an empty class of letters",
    "recusion": "a $ref leads to itself, or through too many others",
    "valid JSON string": "it holds what JSON cannot express, such as half of a character",
}
"""Part of an error message of the library -> what it means for the user."""


def limit(seconds: int, memory: int) -> None:
    try:
        import resource
    except ImportError:  # this system has no such limits: the caller's timeout remains
        return
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


def expression(task: dict[str, Any]) -> str:
    """The regular expression of a task. In a schema's, digits and word characters are only those of ASCII."""
    if task["regex"] is not None:
        return str(task["regex"])
    from outlines_core.json_schema import build_regex_from_schema

    found = build_regex_from_schema(json.dumps(task["schema"]))
    # The library's pattern for times asks for a backslash before the fraction, which is not valid JSON.
    found = found.replace(r"(\\.[0-9]+)?", r"(\.[0-9]+)?")
    return re.sub(r"\\(.)", lambda mark: SHORT.get(mark[1], mark[0]), found)


def automaton(task: dict[str, Any]) -> bytes:
    """The automaton as integers, which `building.transitions` reads. They are, in this order:

    the numbers of states and of transitions, the state before the marks and the one after them; the name of each
    state and how many transitions leave it; the token of each transition, and the next state of each; the final states.
    """
    from outlines_core import Index, Vocabulary

    # Four traits of the library need a workaround. A mark is a byte 0; tokens that hold one are left out.
    # 1. It drops alternatives as soon as an earlier one matches (`a|ab` would never be `ab`): there is a mark after
    #    the pattern, so that nothing matches before the mark.
    # 2. It works out where a match could begin later in a text, which takes forever for `N.{20}`: there are three
    #    marks before the pattern. The first is a match by itself, and after a match the library drops all later ones.
    # 3. It gives up at a place for which the vocabulary has no token: every byte gets a token of its own, which
    #    `building.transitions` leaves out.
    # 4. It would let a surplus bracket close the group around the pattern: the pattern is first compiled without a
    #    group, where that bracket is an error.
    size = task["vocab_size"]
    eos, begin = size + 256, size + 257
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
    tokens = array("q")
    targets = array("q")
    for row in table.values():
        tokens.extend(row)
        targets.extend(row.values())
    parts = (
        array("q", (len(table), len(tokens), before, index.get_next_state(before, begin))),
        array("q", table),
        array("q", map(len, table.values())),
        tokens,
        targets,
        array("q", index.get_final_states()),
    )
    return b"".join(part.tobytes() for part in parts)


def fault(regex: str | None) -> str | None:
    """The fault that Python finds in a regular expression, with its place, which the library does not report.

    None where Python finds none.
    """
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
