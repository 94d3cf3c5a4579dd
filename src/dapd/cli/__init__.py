"""The command line: how it starts, and how it ends when something is wrong. `app.py` has the commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from dapd.errors import DapdError

TRACEBACK = "DAPD_TRACEBACK"
"""The environment variable that has every error shown with its traceback."""


def main() -> None:
    """Run the command line; a user's mistake ends with one message and exit code 2."""

    def commands() -> None:
        from dapd.cli.app import app

        app()

    guarded(commands)


def run(function: Callable[..., Any]) -> None:
    """Run a script's function as a command: its arguments are the options, its mistakes one line."""

    def command() -> None:
        import typer

        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        app.command()(function)
        app()

    guarded(command)


def guarded(work: Callable[[], None]) -> None:
    """Do some work; what a user or the machine did wrong ends the program with one line and exit code 2, and where code
    of the user's own failed, with its lines alone.

    Also what only comes to light when the last of the output is written: a device that is full.
    """
    try:
        try:
            work()
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # whoever read the output has had enough of it
        _forget_output()
        sys.exit(1)
    except Exception as error:
        words = None if os.environ.get(TRACEBACK) else _words(error)
        if words is None:
            raise
        print(f"error: {words}", file=sys.stderr)
        sys.exit(2)


def _words(error: Exception) -> str | None:
    """What the user is told of an error; None where its traceback is all that can be told."""
    from dapd.io.own import CrashError, crash

    if isinstance(error, DapdError) and not isinstance(error, CrashError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in ("typer", "rich", "click"):
        return f"the command line needs the package {error.name!r}: pip install 'dapd[cli]'"
    if (account := crash(error)) is not None:
        return f"{account}\n  ({TRACEBACK}=1 shows the whole traceback)"
    if isinstance(error, OSError):
        _forget_output()
        return f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
    return None


def _forget_output() -> None:
    """Have what is left in the buffer go nowhere: the interpreter would try to write it once more, and complain."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # the output is no file, as in tests
        return
