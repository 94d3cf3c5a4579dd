"""The settings of a training run. They are kept, with the seed, beside the weights."""

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
"""Shares of the tasks among the training examples. Tasks with long answers, numbers or copying are learned last and get
the most; a second run, on the hard mixture, improves the tasks that are still weak after the first one and keeps the
others from being forgotten."""

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
    """Key of `MIXTURES` that sets the shares of the tasks."""
    start: str = ""
    """Checkpoint folder whose weights the run starts from; empty: random weights."""
    trained: str = "all"
    """Weights that are trained: `all`, or those of the `attention` in the layers. All others then stay byte for byte
    those of `start`, so that a repository that holds both checkpoints grows by only a third of a checkpoint."""
    seed: int = 0
    layers: int = 8
    width: int = 512
    heads: int = 8
    mlp: int = 960
    rows: int = 2_000_000
    """Number of examples in the pool, which is made before training; each use of an example draws new masks."""
    workers: int = 0
    """Processes that make the pool; 0: one for each core except two."""
    minutes: float = 0.0
    """Wall-clock budget of the whole command, data and evaluation included; 0: no limit, `steps` alone decides."""
    reserve: float = 15.0
    """Seconds of the budget kept for the export and the evaluation."""
    steps: int = 12_000
    """Largest number of steps; the learning rate falls with the larger used-up share, of the steps or of the time."""
    tokens: int = 98_304
    """Tokens in a step, summed over the rows of all lengths."""
    optimizer: str = "muon"
    """`muon`: Muon inside the layers and AdamW for the rest; `adamw`: AdamW for all."""
    lr: float = 1e-3
    warmup: int = 300
    weight_decay: float = 0.05
    clip: float = 1.0
    ema: float = 0.9995
    """Decay of the moving average of the weights, which is what is exported."""
    full_masked: float = 0.07
    """Share of rows whose whole answer is masked, as it is in the first pass of decoding."""
    roomy: float = 0.4
    """Share of rows with a canvas as long as in decoding; the others get the shortest length that holds the answer."""
    precision: str = "auto"
    """`bfloat16`: the network computes in bf16, while the weights that are trained are kept in fp32 beside it;
    `autocast`: fp32 with bf16 products; `float32`; `auto`: bfloat16 on a GPU, float32 elsewhere."""
    device: str = "auto"
    """`auto`: an accelerator where there is one."""
    compile: bool = True
    capture: bool = True
    """On a GPU, record forward and backward as a CUDA graph and replay it: launching the kernels one by one would cost
    more than the arithmetic."""
    log_every: int = 100
    probe_every: int = 500
    """Steps between measurements of the loss on held-out prompts of each task."""
    save_every: int = 3000
    """Steps between two saves of the state from which a killed run is resumed."""
    prompts: int = 0
    """Prompts per task of the evaluation at the end, for which `reserve` must leave the time; 0: no evaluation, `dapd
    lab score` can do it later."""

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
