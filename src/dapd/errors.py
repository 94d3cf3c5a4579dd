"""Exceptions for what a user can get wrong; each says what was wrong and what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DapdError(ValueError):
    """A mistake that the user can correct; the command line prints it without a traceback."""


class StrategyContractError(DapdError):
    """A strategy selected nothing, or something that it may not select."""


def unknown(kind: str, name: str, allowed: Iterable[str]) -> DapdError:
    """The error for a name that does not exist, with the nearest one that does."""
    names = sorted(allowed)
    written = {one.casefold(): one for one in names}
    near = difflib.get_close_matches(name.casefold(), written, n=1)
    hint = f"did you mean {written[near[0]]!r}? " if near else ""
    return DapdError(f"unknown {kind} {name!r}; {hint}allowed: {', '.join(names) or 'none'}")


def missing_extra(package: str, extra: str, purpose: str) -> DapdError:
    """The error for an optional package that is not installed."""
    return DapdError(f"{purpose} needs the package {package!r}: pip install 'dapd[{extra}]'")


def reason(error: BaseException) -> str:
    """Why a file could not be read or written: in the system's words, or as the library says it that was at work."""
    return getattr(error, "strerror", None) or first_line(error)


def first_line(error: BaseException) -> str:
    """The first line of another library's exception, or the name of its class if it has no message."""
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__
