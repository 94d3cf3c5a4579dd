"""Wording of messages: numbers of things, and lists."""

from __future__ import annotations

from collections.abc import Sequence


def plural(n: int, thing: str, ending: str = "s") -> str:
    """A number of things: `1 pass`, `2 passes`."""
    return f"{n} {thing}{ending * (n != 1)}"


def listed(words: Sequence[str], most: int = 8) -> str:
    """The first `most` words in quotes, and how many more there are."""
    return ", ".join(map(repr, words[:most])) + (f" and {len(words) - most} more" if len(words) > most else "")
