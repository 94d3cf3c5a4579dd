"""The caller's side of the sandbox: one verdict, or many at once."""

from __future__ import annotations

import ast
import contextlib
import os
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from dapd.errors import DapdError

BOOT = """
import sys, types
for name, folder in (("dapd", sys.argv[1]), ("dapd.sandbox", sys.argv[1] + "/sandbox")):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]
from dapd.sandbox.keeper import main
main()
"""
"""Starts the keeper without the package around it, whose import would load torch and take seconds."""

LAYERS = ("namespaces", "scratch", "user", "capabilities", "end", "keys", "privileges", "landlock")
"""All protections, in this order: process ids, network, mounts and shared memory of the program's own; a folder of
limited size; a user with no rights; no capabilities; the program's process is killed when the keeper ends; none of the
keys that the kernel holds for the caller's session; no way back to more rights; only the files that Python needs."""

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables that limit numerical libraries to one thread: without them there is one per core, and each counts as a
process."""

START = 60.0
"""Seconds that the keeper gets to start, enough for a busy machine."""

GRACE = 12.0
"""Seconds after the time limit at which the keeper itself is given up: more than it needs to end everything."""


@dataclass(frozen=True)
class Limits:
    """The resources that one program may use apart from time."""

    memory_mb: int = 1024
    """Address space of each process, in megabytes."""
    processes: int = 16
    """Processes and threads at once."""
    file_mb: int = 16
    """Size of the largest file that may be written, in megabytes."""
    layers: tuple[str, ...] = LAYERS
    """The protections to try; each is left out where the system does not offer it."""


@dataclass(frozen=True)
class Verdict:
    """The verdict on a program."""

    passed: bool
    reason: str
    """Either "passed", or "timed out", or "failed: " and the error. The program may have written some of this text, but
    the text never decides the verdict."""
    seconds: float = 0.0
    """Wall time of program and check."""
    layers: tuple[str, ...] = ()
    """The protections that were in force."""


def judge(program: str, check: str, *, seconds: float = 3.0, limits: Limits | None = None) -> Verdict:
    """Run a program, then a check of it: Python source that uses the program's names and raises where they are wrong.

    The program runs in a process of its own. The check runs in another, and calls the program's functions from there:
    arguments go over as values, results come back as values, and are compared where the program cannot reach.
    """
    if not check.strip():
        raise DapdError("the check is empty: any program would pass it")
    if not seconds > 0:
        raise DapdError(f"seconds is {seconds}; it must be above 0")
    first = program.encode(errors="surrogatepass")
    sources = struct.pack("<Q", len(first)) + first + check.encode(errors="surrogatepass")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        settings = repr({**asdict(limits or Limits()), "folder": folder, "seconds": seconds})
        keeper = subprocess.Popen(
            [sys.executable, "-I", "-c", BOOT, str(Path(__file__).parents[1]), settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={"PATH": os.defpath, "HOME": folder, "TMPDIR": folder, **dict.fromkeys(THREADS, "1")},
            start_new_session=True,
        )
        try:
            answer = _converse(keeper, sources, seconds)
        finally:
            _end(keeper)
    if answer is None:
        return Verdict(False, "timed out", seconds)
    if not answer:
        return Verdict(False, "failed: the judging process was ended", seconds)
    verdict = ast.literal_eval(answer.decode())
    return Verdict(verdict["reason"] == "passed", **verdict)


def judge_many(
    pairs: Iterable[tuple[str, str]],
    *,
    seconds: float = 3.0,
    limits: Limits | None = None,
    workers: int | None = None,
) -> list[Verdict]:
    """The verdicts of pairs of program and check, in their order; `workers` at a time, by default one per core."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPoolExecutor(workers or cores) as pool:
        return list(pool.map(lambda pair: judge(*pair, seconds=seconds, limits=limits), pairs))


def _converse(keeper: subprocess.Popen[bytes], sources: bytes, seconds: float) -> bytes | None:
    """Hand the sources over and wait for the verdict; None where not even the keeper answered in time."""
    assert keeper.stdin is not None
    with contextlib.suppress(BrokenPipeError), keeper.stdin:
        keeper.stdin.write(sources)
    ready = _line(keeper, START)
    if ready != b"ready":
        raise DapdError(f"the sandbox could not be started with {sys.executable} (status {keeper.poll()})")
    return _line(keeper, seconds + GRACE)


def _line(keeper: subprocess.Popen[bytes], seconds: float) -> bytes | None:
    """A line from the keeper; empty: the keeper ended without one; None: none came in time."""
    assert keeper.stdout is not None
    deadline = time.monotonic() + seconds
    poll = select.poll()  # select() takes no descriptor above 1023
    poll.register(keeper.stdout, select.POLLIN)
    text = b""
    while not text.endswith(b"\n"):
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            return None
        part = os.read(keeper.stdout.fileno(), 1)
        if not part:
            return b""
        text += part
    return text.rstrip(b"\n")


def _end(keeper: subprocess.Popen[bytes]) -> None:
    """End the keeper, its group and our ends of its pipes."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(keeper.pid, signal.SIGKILL)
    keeper.kill()
    for pipe in (keeper.stdin, keeper.stdout):
        if pipe is not None:
            pipe.close()
    keeper.wait()
