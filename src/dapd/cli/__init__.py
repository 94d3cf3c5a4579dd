"""The command line: how it starts, and how it ends when something is wrong. `app.py` has the commands."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from typing import Any

from dapd.errors import DapdError

TRACEBACK = "DAPD_TRACEBACK"
"""The environment variable that makes every error show its traceback."""


def main() -> None:
    """Run the command line. A user's mistake ends it with one message and exit code 2."""

    def commands() -> None:
        from dapd.cli.app import app

        # In a process that was started for this command the collector is disabled: modules stay until the end, and to
        # look for garbage in all of torch, now and at the end, takes half a second.
        if not gc.isenabled():
            gc.freeze()
            gc.enable()
        app()

    guarded(commands)


def run(function: Callable[..., Any]) -> None:
    """Run a script's function as a command: its arguments are the options, and a mistake is reported in one line."""

    def command() -> None:
        import typer

        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        app.command()(function)
        app()

    guarded(command)


def guarded(work: Callable[[], None]) -> None:
    """Do some work. A mistake of the user or a fault of the machine ends the program with one line and exit code 2; a
    failure in code of the user's own ends it with the lines of that code.

    That includes errors that only appear when the last of the output is written, such as a full device.
    """
    try:
        try:
            work()
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of the output has closed it, as `head` does
        _forget_output()
        sys.exit(1)
    except Exception as error:
        words = None if os.environ.get(TRACEBACK) else _words(error)
        if words is None:
            raise
        print(f"error: {words}", file=sys.stderr)
        sys.exit(2)


def _words(error: Exception) -> str | None:
    """The message for an error; None where only its traceback explains it."""
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
    """Discard what is left in the buffer: the interpreter would try to write it again at the end, and complain."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # the output is not a file, as in tests
        return
