"""What a training run is made of. The same values, with the seed, are kept beside the weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from dapd.errors import DapdError, unknown
from dapd.io.fields import read

MIXTURES = {
    "broad": {
        "quiz": 38.0,
        "story": 17.0,
        "code": 6.0,
        "record": 11.0,
        "scene": 8.0,
        "sentence": 3.0,
        "tied": 5.0,
        "shuffle": 8.0,
        "latin": 3.0,
        "sudoku": 5.0,
    },
    "hard": {
        "quiz": 52.0,
        "story": 16.0,
        "code": 3.0,
        "record": 13.0,
        "scene": 6.0,
        "sentence": 1.5,
        "tied": 3.0,
        "shuffle": 2.5,
        "latin": 1.0,
        "sudoku": 2.0,
    },
}
"""Shares of the tasks among the training examples. What is long, holds numbers or copies is learned last and gets the
most; a second run on the hard mixture brings up what the first one left behind, and keeps the rest alive."""

LENGTHS = (96, 144, 224, 320, 432)
"""Lengths of training rows, chosen so that few columns are spent on EOS tokens beyond the canvas. The last one holds
the longest prompt with its canvas."""

PRECISIONS = ("auto", "bfloat16", "autocast", "float32")
OPTIMIZERS = ("muon", "adamw")
TRAINED = ("all", "attention")


@dataclass(frozen=True)
class TrainSettings:
    """A training run. The defaults are those of the shipped model's first run, eleven minutes on an H200."""

    tasks: tuple[str, ...] = tuple(MIXTURES["broad"])
    """Names of the tasks."""
    mixture: str = "broad"
    """Name of the tasks' shares, in `MIXTURES`."""
    start: str = ""
    """Checkpoint folder whose weights to start from; empty: fresh ones."""
    trained: str = "all"
    """`all` weights, or the `attention` of the layers: the others then stay, byte for byte, those of `start`, and a
    repository that holds both checkpoints grows by a third of one."""
    seed: int = 0
    layers: int = 8
    width: int = 512
    heads: int = 8
    mlp: int = 960
    rows: int = 2_000_000
    """Size of the pool of examples, made before training; each use of a row is masked anew."""
    workers: int = 0
    """Processes that make the pool; 0: one per core but two."""
    minutes: float = 0.0
    """Wall-clock budget of the whole command, data and evaluation included; 0: none, `steps` alone decides."""
    reserve: float = 15.0
    """Seconds of the budget kept for the export and the evaluation."""
    steps: int = 12_000
    """Most steps; the learning rate falls along the nearer end, of steps or of time."""
    tokens: int = 98_304
    """Tokens in a step, over all lengths."""
    optimizer: str = "muon"
    """`muon`: Muon inside the layers and AdamW for the rest; `adamw`: AdamW for all."""
    lr: float = 1e-3
    warmup: int = 300
    weight_decay: float = 0.05
    clip: float = 1.0
    ema: float = 0.9995
    """Decay of the moving average of the weights, which is what is exported."""
    full_masked: float = 0.07
    """Share of rows whose whole answer is masked: the first step of decoding."""
    roomy: float = 0.4
    """Share of rows with a canvas as long as in decoding; the others are as short as their length allows."""
    precision: str = "auto"
    """`bfloat16`: the network computes in bf16, beside the fp32 weights that are trained; `autocast`: fp32 with bf16
    products; `float32`; `auto`: bfloat16 on a GPU, float32 elsewhere."""
    device: str = "auto"
    """`auto`: an accelerator where there is one."""
    compile: bool = True
    capture: bool = True
    """On a GPU, record forward and backward once and replay them: the launches cost more than the arithmetic."""
    log_every: int = 100
    probe_every: int = 500
    """Steps between measurements of the loss on held-out prompts of each task."""
    save_every: int = 3000
    """Steps between the states from which a killed run goes on."""
    prompts: int = 0
    """Prompts a task in an evaluation at the end, which needs a `reserve`; 0: none, `dapd lab score` does it later."""

    def __post_init__(self) -> None:
        for name in self.tasks:
            if name not in MIXTURES["broad"]:
                raise unknown("task", name, MIXTURES["broad"])
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
        for field in ("full_masked", "roomy", "ema"):
            if not 0 <= getattr(self, field) <= 1:
                raise DapdError(f"{field} is {getattr(self, field)}; it must lie between 0 and 1")
        for field, allowed in (
            ("precision", PRECISIONS),
            ("optimizer", OPTIMIZERS),
            ("mixture", MIXTURES),
            ("trained", TRAINED),
        ):
            if getattr(self, field) not in allowed:
                raise unknown(field, getattr(self, field), allowed)
        if self.trained != "all" and not self.start:
            raise DapdError(f"trained is {self.trained}: the other weights must come from a checkpoint, named by start")
        if self.minutes and self.minutes * 60 <= self.reserve:
            raise DapdError(f"minutes is {self.minutes}, but reserve keeps {self.reserve} seconds of it back")

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of each task among the examples."""
        return tuple(MIXTURES[self.mixture][name] for name in self.tasks)


def with_values(settings: TrainSettings, values: Iterable[str]) -> TrainSettings:
    """Settings changed by texts such as `steps=500` or `tasks=latin,shuffle`."""
    changes: dict[str, str] = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals:
            raise DapdError(f"{value!r} is not of the form name=value")
        changes[name] = text
    return dataclasses.replace(settings, **read(TrainSettings, changes))
