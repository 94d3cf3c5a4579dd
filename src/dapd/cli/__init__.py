"""The command line: `dapd generate`, `dapd models`, `dapd strategies`, `dapd doctor`, `dapd mrf`, `dapd lab`."""

from __future__ import annotations

import sys

from dapd.errors import DapdError


def main() -> None:
    """Run the command line; a user's mistake ends with one message and exit code 2."""
    try:
        from dapd.cli.app import app
    except ModuleNotFoundError as error:
        sys.exit(f"error: the command line needs the package {error.name!r}: pip install 'dapd[cli]'")
    try:
        app()
    except DapdError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
