"""Work on a GPU that is recorded once as a CUDA graph and replayed: decoding, training and benchmarks all do it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import torch

T = TypeVar("T")


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
    """Inside this context it is an error to wait for the device."""
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)
