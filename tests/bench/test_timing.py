"""The clock, on a CPU and on a CUDA device that is only pretended."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from dapd.bench import timing as timing_module
from dapd.bench.timing import Timing, time_calls, time_steps
from dapd.errors import DapdError

CPU = torch.device("cpu")


def test_medians_means_and_runs() -> None:
    timing = Timing(((1.0, 2.0, 9.0),), (4.0,))
    assert (timing.ms, timing.low, timing.high, timing.wall_ms) == (2.0, 1.0, 9.0, 4.0)
    assert Timing(((1.0, 2.0, 9.0),), (4.0,), period=3).ms == 4.0
    both = timing.with_more(Timing(((3.0, 3.0, 4.0),), (3.0,), peak_gb=7.0))
    assert both.run_ms == [2.0, 3.0]
    assert (both.ms, both.wall_ms, both.peak_gb) == (3.0, 3.5, None)


def test_warm_up_is_not_timed() -> None:
    calls: list[int] = []
    timing = time_calls(lambda: calls.append(1) or 1, CPU, warmup=2, repeats=3)
    assert len(calls) == 5
    assert len(timing.samples) == 3
    assert timing.peak_gb is None


def test_steps_that_end_too_soon() -> None:
    with pytest.raises(DapdError, match="raise --gen"):
        time_steps(iter([1, 2]), CPU, warmup=1, repeats=2)


def test_events_and_memory_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self, stream: object) -> None:
            self.at = now[0]

        def elapsed_time(self, later: "Event") -> float:
            return later.at - self.at

    memory = iter([3e9, 4e9])
    fake = SimpleNamespace(
        Event=Event,
        current_stream=lambda device: None,
        synchronize=lambda device: None,
        empty_cache=lambda: None,
        reset_peak_memory_stats=lambda device: None,
        memory_allocated=lambda device: next(memory),
        max_memory_allocated=lambda device: 5e9,
        max_memory_reserved=lambda device: 6e9,
    )
    monkeypatch.setattr(torch, "cuda", fake)
    heated = []
    monkeypatch.setattr(timing_module, "heat", lambda device: heated.append(now[0]))

    def steps() -> Iterator[int]:
        for ms in (100, 1, 2, 6):
            now[0] += ms
            yield ms

    timing = time_steps(steps(), torch.device("cuda"), warmup=1, repeats=3)
    assert timing.samples == (1.0, 2.0, 6.0)
    assert heated == [100], "after the warm-up and before the first step that is timed"
    assert (timing.peak_gb, timing.reserved_gb, timing.grown_gb) == (5.0, 6.0, 1.0)
