"""The command `dapd`. It stands outside of the package, whose import takes seconds: who interrupts it then gets no
traceback either."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        from dapd.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()
