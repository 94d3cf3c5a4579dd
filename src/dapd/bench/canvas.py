"""The cost of a pass on a CPU as the canvas grows: DAPD, which looks at all pairs of masks, beside a plain threshold.

The model is tiny, so that the cost of everything apart from its layers shows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from dapd.bench.cases import Bench, Case, Record
from dapd.bench.floor import matmul_rate
from dapd.models import SHAPES, random

T = TypeVar("T")

SHAPE = "tiny-llada"
PLAIN = "fast-dllm"
OURS = "dapd-staged"
TAKEN = 16
"""Size of the independent set in the passes that are timed: as large as with a trained model, or smaller."""


def tiny(longest: int, *, warmup: int, repeats: int) -> Bench:
    """The tiny model with room for the longest canvas."""
    network = random(dataclasses.replace(SHAPES[SHAPE], max_length=longest), sharpness=8.0)
    rate = matmul_rate(network.device, network.dtype)
    return Bench(network, f"random:{SHAPE}", rate, warmup=warmup, repeats=repeats)


def measure(bench: Bench, columns: int) -> Record:
    """Time passes over a half-masked canvas of `columns` columns with both decoders, and measure the memory of each.

    Times are in milliseconds; memory is in MB, beyond what the process used before.
    """
    plain, plain_mb = peak(lambda: bench.time_step(Case(PLAIN, 0, columns)))
    ours, ours_mb = peak(lambda: bench.time_step(Case(OURS, 0, columns, taken=min(TAKEN, columns // 4))))
    return {
        "kind": "canvas",
        "model": bench.name,
        "columns": columns,
        "threads": torch.get_num_threads(),
        "plain_ms": plain.ms,
        "dapd_ms": ours.ms,
        "ratio": ours.ms / plain.ms,
        "plain_mb": plain_mb,
        "dapd_mb": ours_mb,
    }


def peak(work: Callable[[], T]) -> tuple[T, float | None]:
    """The result of some work, and how far the memory of the process rose above its level before the work, in MB.

    Linux keeps the highest level itself and lets it be reset; on other systems the second value is None.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        result = work()
        return result, (_status("VmHWM") - before) / 1e3
    except OSError:
        return work(), None


def _status(name: str) -> int:
    """A number in kB from the status that Linux keeps of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])
