"""The process between the caller and the judged program: it starts both sides, watches the clock and ends them all.

It runs in an interpreter of its own, started for one verdict, and executes nothing of the program's. In order:

1. the candidate is started and confined, before a single byte of the program or the check has been read;
2. program and check arrive on standard input; the examiner is started with them;
3. the examiner sends its verdict, or the time is up;
4. everything below this process is ended, and the verdict goes out on standard output.
"""

from __future__ import annotations

import ast
import os
import select
import struct
import sys
import time
from typing import Any

from dapd.sandbox import system
from dapd.sandbox.candidate import serve
from dapd.sandbox.confine import USERS, Allowance, close_all_but, confine, limit_memory
from dapd.sandbox.examiner import Line, examine
from dapd.sandbox.wire import ClosedError, GarbageError, receive, send

READY = b"ready\n"
"""Written when the program's time begins: the caller counts from here, so that the start of Python does not count."""

PATIENCE = 10.0
"""Seconds to wait until all processes have ended. A few milliseconds are usual; on a busy machine a process that was
killed may have to wait for its turn to end."""

PROCESSES = os.path.isdir("/proc/self")
"""Whether the system lists its processes as files."""

KILL = 9
STOP = 19


def main() -> None:
    """Judge what comes on standard input, under the settings in the last argument."""
    settings = ast.literal_eval(sys.argv[-1])
    seconds = settings.pop("seconds")
    for protect in (system.die_with_parent, system.adopt_orphans, system.hide_memory):
        try:
            protect()
        except OSError:
            continue
    allowance = Allowance(
        **settings,
        user=USERS[os.getpid() % len(USERS)],
        seconds=int(seconds) + 2,
    )
    candidate, questions, answers = _start_candidate(allowance)
    program, check = _sources()
    os.write(1, READY)
    began = time.monotonic()
    examiner, report = _start_examiner(questions, answers, allowance, program, check)
    verdict = _wait(report, began + seconds)
    verdict["seconds"] = round(time.monotonic() - began, 4)
    _end_all([candidate, examiner])
    os.write(1, repr(verdict).encode() + b"\n")
    os._exit(0)


def _sources() -> tuple[str, str]:
    """Read program and check from standard input: the caller writes the length of the program, then both texts."""
    raw = sys.stdin.buffer.read()
    (size,) = struct.unpack_from("<Q", raw)
    texts = (raw[8 : 8 + size], raw[8 + size :])
    return texts[0].decode(errors="surrogatepass"), texts[1].decode(errors="surrogatepass")


def _start_candidate(allowance: Allowance) -> tuple[int, int, int]:
    """Start the program's process: its id, the pipe to write questions to, and the pipe to read its answers from."""
    theirs_in, questions = os.pipe()
    answers, theirs_out = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            serve(theirs_in, theirs_out, confine(allowance, (theirs_in, theirs_out)))
        finally:
            os._exit(1)
    os.close(theirs_in)
    os.close(theirs_out)
    return process, questions, answers


def _start_examiner(questions: int, answers: int, allowance: Allowance, program: str, check: str) -> tuple[int, int]:
    """Start the process that runs the check: its id, and the pipe to read its verdict from."""
    report, out = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            close_all_but((questions, answers, out))
            limit_memory(allowance.memory_mb)
            send(out, repr(_examine(Line(answers, questions), program, check)).encode())
        finally:
            os._exit(0)
    for descriptor in (questions, answers, out):
        os.close(descriptor)
    return process, report


def _examine(line: Line, program: str, check: str) -> dict[str, Any]:
    try:
        _, layers = line.get()
    except (ClosedError, GarbageError, ValueError):
        return {"reason": "failed: the process for the program could not be started", "layers": []}
    return {"reason": examine(line, program, check), "layers": layers}


def _wait(report: int, deadline: float) -> dict[str, Any]:
    """The examiner's verdict, or "timed out". Where it ends without one, the check failed: memory may have run out."""
    poll = select.poll()
    poll.register(report, select.POLLIN)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        return {"reason": "timed out"}
    try:
        verdict: dict[str, Any] = ast.literal_eval(receive(report).decode())
    except ClosedError:
        return {"reason": "failed: the check ended its process"}
    return verdict


def _end_all(started: list[int]) -> None:
    """End every descendant. A process whose parent has ended becomes a child of this one, so that none is missed; where
    the system does not list processes, at least the two that were started are ended, with their groups.

    They are all stopped before the first is killed: a program that forks without end would use every process that
    becomes free under its limit, but a stopped process still counts towards the limit, and does not fork.
    """
    deadline = time.monotonic() + PATIENCE
    family: dict[int, str] = {}
    while time.monotonic() < deadline:
        family = _descendants() if PROCESSES else {sign * one: "" for one in started for sign in (1, -1)}
        running = [one for one, state in family.items() if state and state not in "TtZX"]
        _signal_all(running or list(family), STOP if running else KILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.0005)
    _signal_all(list(family), KILL)


def _signal_all(processes: list[int], number: int) -> None:
    for process in processes:
        try:
            os.kill(process, number)
        except OSError:
            continue


def _descendants() -> dict[int, str]:
    """Process id -> state letter of every process below this one, those in namespaces of their own included."""
    parents: dict[int, int] = {}
    states: dict[int, str] = {}
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
            parents[int(name)] = int(parent)
        except (OSError, ValueError):
            continue
        states[int(name)] = state.decode()
    family = {os.getpid()}
    size = 0
    while size != len(family):
        size = len(family)
        family |= {one for one, parent in parents.items() if parent in family}
    return {one: states[one] for one in family - {os.getpid()}}
