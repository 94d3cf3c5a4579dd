"""The command `dapd`. It stands outside of the package, whose import takes seconds: who interrupts it then gets no
traceback either."""

from __future__ import annotations

import gc
import sys
import warnings


def main() -> None:
    """Run the command line."""
    gc.disable()  # `dapd.cli.main` enables it when all commands are loaded
    # Torch says this where numpy is not installed. Nothing here needs it but forms, which say so themselves.
    warnings.filterwarnings("ignore", "Failed to initialize NumPy")
    try:
        from dapd.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()
