"""The cells of each table of the paper: a setting, a task, a length, and the numbers published for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from dapd.decoding import Options
from dapd.decoding.sampling import Sampling
from dapd.evaluation.paper import numbers
from dapd.settings import PAPER, Setting, fields_of

LENGTH = 256
HARNESS = {"math500": "minerva_math500"}
"""Tasks that lm-eval knows under another name."""


@dataclass(frozen=True)
class Cell:
    """One task under one decoder, as a table of the paper has it."""

    method: str
    task: str
    setting: Setting
    length: int = LENGTH
    eos: str = "none"
    published: Mapping[str, float] = field(default_factory=dict)
    name: str = ""
    """The table's name of the row; empty: the method's."""

    @property
    def row(self) -> str:
        return self.name or numbers.TITLES[self.method]

    @property
    def column(self) -> str:
        return numbers.TITLES[self.task]

    @property
    def key(self) -> str:
        """The folder of its results. Tables share cells: equal settings give equal keys."""
        strategy = type(self.setting.strategy).__name__.lower()
        fields = fields_of(self.setting.strategy)
        knobs = {"dapd": ("shortcut", "tau_min", "tau_max"), "klass": ("confidence", "kl"), "threshold": ("threshold",)}
        shown = "-".join(str(fields[name]) for name in knobs.get(strategy, tuple(fields)[:1]))
        parts = [self.task, f"{self.length}", strategy, shown, f"{self.setting.n_blocks}b"]
        return "_".join(parts + ([f"eos-{self.eos}"] if self.eos != "none" else []))

    @property
    def loop(self) -> Options:
        return Options(sampling=Sampling(eos=self.eos))  # type: ignore[arg-type]


def main(family: str) -> Iterator[Cell]:
    """Every method on the five benchmarks: the baselines of LLaDA in four blocks, the rest in one."""
    for method, points in numbers.MAIN[family].items():
        for task, (accuracy, steps) in zip(numbers.TASKS, points, strict=True):
            setting = PAPER[f"{method}@{family}/{task}"]
            yield Cell(method, task, setting, published={"accuracy": accuracy, "steps": steps})


def eos(family: str) -> Iterator[Cell]:
    """The baselines in one block, in one block with EOS held back, and in four."""
    for method, settings in numbers.EOS.items():
        for name, points in settings.items():
            for task, (accuracy, steps) in zip(numbers.TASKS, points, strict=True):
                setting = PAPER[f"{method}@{family}/{task}"]
                yield Cell(
                    method,
                    task,
                    dataclasses.replace(setting, n_blocks=4 if name == "4 blocks" else 1),
                    name=f"{numbers.TITLES[method]}, {name}",
                    eos=suppression(task) if "EOS-Inf" in name else "none",
                    published={"accuracy": accuracy, "steps": steps},
                )


def suppression(task: str) -> str:
    """Which of LLaDA's two ways of holding back EOS: the paper does not say, LLaDA's own evaluation does per task."""
    return "ban" if task == "humaneval" else "defer"


def tps(family: str) -> Iterator[Cell]:
    for method, (accuracy, steps, speed) in numbers.TPS.items():
        published = {"accuracy": accuracy, "steps": steps, "tps": speed}
        yield Cell(method, "humaneval", PAPER[f"{method}@{family}/humaneval"], published=published)


def long(family: str) -> Iterator[Cell]:
    for task, lengths in numbers.LONG.items():
        for length, (accuracy, steps, speed) in lengths.items():
            yield Cell(
                "dapd-staged",
                task,
                PAPER[f"dapd-staged@{family}/{task}"],
                name=f"{length} tokens",
                length=length,
                published={"accuracy": accuracy, "steps": steps, "tps": speed},
            )


def blocks(family: str) -> Iterator[Cell]:
    for (method, n_blocks), (accuracy, speed) in numbers.BLOCKS.items():
        yield Cell(
            method,
            "humaneval",
            dataclasses.replace(PAPER[f"{method}@{family}/humaneval"], n_blocks=n_blocks),
            name=f"{numbers.TITLES[method]}, {n_blocks} block{'s' * (n_blocks > 1)}",
            published={"accuracy": accuracy, "tps": speed},
        )


TABLES = {"main": main, "eos": eos, "tps": tps, "long": long, "blocks": blocks}
"""The tables that are made of lm-eval's tasks."""
