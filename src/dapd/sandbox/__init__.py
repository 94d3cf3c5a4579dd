"""Runs a program with a check behind it in a process of its own, and says whether the check passed.

A stand-in with the interface of the real sandbox: limits on time and memory, no protection of files or of the network.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from dataclasses import dataclass

MEMORY = 512 * 2**20
"""Bytes of address space that a program may take."""


@dataclass(frozen=True)
class Verdict:
    """What came of running a program."""

    passed: bool
    reason: str
    """Why it did not pass, in a line; empty where it did."""


def judge(program: str, check: str, *, seconds: float = 3.0) -> Verdict:
    """Run the program and then the check, which raises where the program is wrong."""
    command = [sys.executable, "-I", "-S", "-c", f"{program}\n\n{check}\n"]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=seconds, text=True, preexec_fn=_limited, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return Verdict(False, f"still running after {seconds:g} seconds")
    if done.returncode == 0:
        return Verdict(True, "")
    lines = done.stderr.strip().splitlines()
    return Verdict(False, lines[-1] if lines else f"exit status {done.returncode}")


def _limited() -> None:
    """Limits of the new process, set before it runs anything."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
