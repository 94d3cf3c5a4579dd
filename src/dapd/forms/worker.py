"""A process of its own that turns a pattern into an automaton over tokens, and may not take more than it is given.

A short pattern can stand for an automaton that no machine holds, and the library that builds it cannot be interrupted.
This file is run as a script, without the rest of the package and without numpy, which takes longer to load than most
patterns to build. It reads one JSON object and writes whole numbers of 64 bits.
"""

from __future__ import annotations

import json
import re
import sys
from array import array
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
    """Everything about the automaton, as whole numbers; `building.transitions` reads them.

    The numbers of states and of transitions, the state before the marks and the one behind them; the name of each
    state and how many transitions leave it; the token of each transition, and the next state of each; the final states.
    """
    from outlines_core import Index, Vocabulary

    # Four things about the library have to be got around. It drops alternatives as soon as an earlier one matches
    # (`a|ab` would never be `ab`): with a mark behind the pattern, nothing matches before the mark. It also works out
    # where a match could begin later in a text, which takes forever for `N.{20}`: before the pattern stand three
    # marks, the first of which matches alone, and from there on what would begin later is dropped. It gives up at a
    # place for which the vocabulary has no token: every byte gets a token of its own, which the reader leaves out. And
    # a bracket too many would close the group around the pattern: without a group around it, it is a mistake.
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
    tokens, targets = array("q"), array("q")
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
