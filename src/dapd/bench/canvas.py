"""What a pass costs as the canvas grows, on a CPU: DAPD, which looks at all pairs of masks, beside a plain threshold.

The model is tiny, so that what is done besides its layers shows.
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
"""Positions that are independent of each other in the passes that are timed: what a trained model gives or less."""


def tiny(longest: int, *, warmup: int, repeats: int) -> Bench:
    """The tiny model with room for the longest canvas."""
    network = random(dataclasses.replace(SHAPES[SHAPE], max_length=longest), sharpness=8.0)
    rate = matmul_rate(network.device, network.dtype)
    return Bench(network, f"random:{SHAPE}", rate, warmup=warmup, repeats=repeats)


def measure(bench: Bench, columns: int) -> Record:
    """Passes over a half-masked canvas of that length: milliseconds, and the memory that each kind takes besides."""
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
    """What some work gives, and the most memory that the process had meanwhile above what it had before, in MB.

    Linux counts that itself, and lets the count be set back; None elsewhere.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        result = work()
        return result, (_status("VmHWM") - before) / 1e3
    except OSError:
        return work(), None


def _status(name: str) -> int:
    """A line of what the system knows of this process, in kB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])
