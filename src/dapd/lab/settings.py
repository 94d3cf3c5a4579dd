"""What a training run is made of. The same values, with the seed, are kept beside the weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from dapd.errors import DapdError
from dapd.io.fields import read
from dapd.lab import tasks

MIXTURE = {
    "copy": 1.0,
    "reverse": 1.5,
    "sort": 4.0,
    "shuffle": 6.0,
    "insert_index": 2.0,
    "insert_random": 2.5,
    "remove_index": 2.0,
    "remove_random": 1.5,
    "replace_index": 1.5,
    "replace_random": 4.0,
    "latin": 6.0,
    "sudoku": 8.0,
    "sentence": 3.0,
    "story": 10.0,
    "bundle": 22.0,
    "tied": 18.0,
    "loose": 9.0,
}
"""Share of each task among the training examples; arithmetic is learned last and gets the most."""

LEFT_OUT = ("loose",)
"""Tasks that the shipped model is not trained on: it does not learn them well enough to compare decoders with."""

LENGTHS = (72, 112, 224, 352)
"""Lengths of training rows: a row takes the shortest that holds it, a few take a longer one."""


@dataclass(frozen=True)
class TrainSettings:
    """A training run. The defaults train the shipped model in one go of nine minutes on a large GPU."""

    tasks: tuple[str, ...] = tuple(name for name in MIXTURE if name not in LEFT_OUT)
    """Names of the tasks, mixed by `MIXTURE`."""
    start: str = ""
    """Checkpoint folder whose weights to start from; empty: fresh ones."""
    seed: int = 0
    layers: int = 8
    width: int = 384
    heads: int = 6
    mlp: int = 1024
    rows: int = 4_000_000
    """Size of the pool of examples, made before training; each use of a row is masked anew."""
    workers: int = 0
    """Processes that make the pool; 0: one per core."""
    minutes: float = 9.0
    """Wall-clock budget of the whole command, data and evaluation included; 0: none, `steps` alone decides."""
    reserve: float = 60.0
    """Seconds of the budget kept for the export and the evaluation."""
    steps: int = 100_000
    """Most steps; the learning rate falls along the nearer end, of steps or of time."""
    tokens: int = 65_536
    """Tokens in a step, over all lengths."""
    lr: float = 1.2e-3
    warmup: int = 300
    weight_decay: float = 0.05
    clip: float = 1.0
    ema: float = 0.9995
    """Decay of the moving average of the weights, which is what is exported."""
    full_masked: float = 0.09
    """Share of rows whose whole answer is masked: the first step of decoding."""
    stretch: float = 0.12
    """Share of rows put into a longer row than they need, so that long canvases with short answers are known."""
    device: str = "auto"
    """`auto`: an accelerator where there is one."""
    compile: bool = True
    capture: bool = True
    """On a GPU, record forward and backward once and replay them: the launches cost more than the arithmetic."""
    log_every: int = 100
    probe_every: int = 1000
    """Steps between measurements of the loss on held-out prompts of each task."""
    save_every: int = 2000
    """Steps between the states from which a killed run goes on."""
    prompts: int = 400
    """Prompts a task in the evaluation; 0: no evaluation."""

    def __post_init__(self) -> None:
        for name in self.tasks:
            tasks.get(name)
        if not self.tasks:
            raise DapdError("no tasks to train on")
        for field in (
            "layers",
            "width",
            "heads",
            "mlp",
            "rows",
            "steps",
            "tokens",
            "log_every",
            "probe_every",
            "save_every",
        ):
            if getattr(self, field) < 1:
                raise DapdError(f"{field} is {getattr(self, field)}; it must be at least 1")
        for field in ("full_masked", "stretch", "ema"):
            if not 0 <= getattr(self, field) <= 1:
                raise DapdError(f"{field} is {getattr(self, field)}; it must lie between 0 and 1")
        if self.minutes and self.minutes * 60 <= self.reserve:
            raise DapdError(f"minutes is {self.minutes}, but reserve keeps {self.reserve} seconds of it back")


def with_values(settings: TrainSettings, values: Iterable[str]) -> TrainSettings:
    """Settings changed by texts such as `steps=500` or `tasks=copy,shuffle`."""
    changes: dict[str, str] = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals:
            raise DapdError(f"{value!r} is not of the form name=value")
        changes[name] = text
    return dataclasses.replace(settings, **read(TrainSettings, changes))
