"""Running code that a model wrote: a process of its own per candidate, with limits on time and memory.

This keeps accidents small (endless loops, memory, stray files in the working folder). It is no sandbox: whatever the
user may do, the code may do. Run untrusted models inside a container without network.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

RUNNER = """
import os, sys
import resource
seconds, memory, mark = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 24, 1 << 24))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
program = sys.stdin.read()
report = os.dup(1)
silence = os.open(os.devnull, os.O_RDWR)
for descriptor in (0, 1, 2):
    os.dup2(silence, descriptor)
try:
    exec(compile(program, "<candidate>", "exec"), {})
except BaseException as error:
    os.write(report, ("failed: " + type(error).__name__ + ": " + str(error))[:300].encode(errors="replace"))
    os._exit(1)
os.write(report, mark.encode())
os._exit(0)
"""


@dataclass(frozen=True)
class Limits:
    """What one piece of code may use."""

    seconds: float = 10.0
    """Processor and wall time."""
    memory_mb: int = 1024


_limits: ContextVar[Limits] = ContextVar("limits")


@contextlib.contextmanager
def limited(limits: Limits) -> Iterator[None]:
    """Code that is run inside has these limits."""
    token = _limits.set(limits)
    try:
        yield
    finally:
        _limits.reset(token)


def execute(program: str, limits: Limits | None = None) -> str:
    """Run a program: "passed" if it came to its end, else "timed out" or what went wrong."""
    limits = limits or _limits.get(Limits())
    # Reaching the end is shown by a word that the program cannot know: exit codes are too easy to come by.
    mark = secrets.token_hex(16)
    size = (str(math.ceil(limits.seconds)), str(limits.memory_mb << 20), mark)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", RUNNER, *size],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={"PATH": os.defpath, "HOME": folder, "TMPDIR": folder, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(program.encode(errors="surrogatepass"), timeout=limits.seconds)
        except subprocess.TimeoutExpired:
            return "timed out"
        finally:
            # The group, because the code may have started processes of its own.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode == -signal.SIGXCPU:
        return "timed out"
    text = said.decode(errors="replace")
    return "passed" if text == mark else text or f"failed: ended with status {process.returncode}"


class CodeEval:
    """Stands in for the hub's `code_eval` metric, which lm-eval's HumanEval and MBPP fetch when they are imported."""

    def compute(
        self, references: Sequence[str], predictions: Sequence[Sequence[str]], k: Sequence[int] = (1,), **_: Any
    ) -> tuple[dict[str, float], dict[int, list[str]]]:
        """pass@k over problems, and what became of each candidate."""
        runs = {
            number: [execute(f"{candidate}\n{test}") for candidate in candidates]
            for number, (test, candidates) in enumerate(zip(references, predictions, strict=True))
        }
        counts = [(len(said), sum(what == "passed" for what in said)) for said in runs.values()]
        rates = {f"pass@{n}": sum(pass_at(n, *count) for count in counts) / len(counts) for n in k}
        return rates, runs


def pass_at(k: int, total: int, passed: int) -> float:
    """The chance that k of the candidates, drawn without replacement, hold one that passes."""
    if total - passed < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / n for n in range(total - passed + 1, total + 1))


@contextlib.contextmanager
def local_code_eval() -> Iterator[None]:
    """Inside, loading the hub's code metric gives ours."""
    import evaluate

    fetch = evaluate.load

    def load(name: str, *args: Any, **kwargs: Any) -> Any:
        return CodeEval() if name == "code_eval" else fetch(name, *args, **kwargs)

    evaluate.load = load
    try:
        yield
    finally:
        evaluate.load = fetch
