"""Work on a GPU that is recorded once as a CUDA graph and replayed: decoding, training and benchmarks all do it."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TextIO, TypeVar

import torch

T = TypeVar("T")

WAITS = "called a synchronizing CUDA operation"
"""How torch's warning begins, in its debug mode, when something waits for the device."""

_one_trial = threading.Lock()
"""What is changed during a trial, torch's mode and how warnings are shown, belongs to all threads."""


def capture(
    work: Callable[[], T],
    *,
    stream: torch.cuda.Stream | None = None,
    pool: Any = None,
    warmups: int = 1,
    refuse_waiting: bool = False,
) -> Callable[[], T]:
    """Record `work` as a CUDA graph; the returned function replays it and returns the same tensors, newly written.

    The work runs `warmups` times beforehand on the same stream: compiled kernels and workspaces must not be made while
    it is recorded. `refuse_waiting` makes those runs fail if they wait for the device, before anything is recorded.
    """
    stream = stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), _no_waiting() if refuse_waiting else nullcontext():
        for _ in range(warmups):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        results = work()

    def replay() -> T:
        graph.replay()
        return results

    return replay


@contextmanager
def _no_waiting() -> Iterator[None]:
    """It is an error if this thread waits for the device inside this context; the error is raised at its end.

    torch's debug mode holds for all threads. The others may wait as they like, so torch only warns, and what it warns
    of is looked at here: the thread that shows a warning is the one that waits.
    """
    here = threading.get_ident()
    waits: list[str] = []
    over = False

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if over or not str(message).startswith(WAITS):  # over: another thread's `catch_warnings` may put this back
            shown(message, category, filename, lineno, file, line)
        elif threading.get_ident() == here:
            waits.append(f"{filename}:{lineno}")

    with _one_trial, warnings.catch_warnings():
        warnings.filterwarnings("always", message=WAITS)
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
        shown = warnings.showwarning
        warnings.showwarning = show
        mode = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(mode)
            over = True
    if waits:
        raise RuntimeError(f"it waits for the device, as a read of a tensor's value does ({waits[0]})")
