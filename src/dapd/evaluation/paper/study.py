"""The set-up that all tables share: the model, how much of the data, where results go, and what the user left out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from dapd.decoding import Options
from dapd.errors import DapdError, unknown
from dapd.evaluation.decoding import Plan
from dapd.evaluation.harness.options import Chat, EvalOptions
from dapd.evaluation.paper import numbers
from dapd.evaluation.paper.cells import LENGTH, Cell
from dapd.evaluation.parallelbench import GROUPS
from dapd.evaluation.world import World
from dapd.generation import DiffusionLM
from dapd.io.files import make_folder, write_text
from dapd.settings import Setting

METHODS = ("original", "fast-dllm", "eb-sampler", "klass", "dapd-staged", "dapd-direct")


@dataclass(frozen=True)
class Scope:
    """How much of a table is run."""

    limit: int | None = None
    """Number of samples of each task, the first ones of its data; None: all."""
    length: int = LENGTH
    """New tokens instead of the paper's 256; other lengths change in proportion."""
    only: tuple[str, ...] = ()
    """Names of the methods and tasks to run; empty: all."""
    shots: int | None = None
    """Examples in lm-eval's prompts; None: its defaults, as in the paper."""
    sweep: bool = False
    """Multi-question: run the paper's sweeps of the baselines and keep the most accurate setting of each."""

    def __post_init__(self) -> None:
        for name in ("limit", "length"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise DapdError(f"{name} is {value}; it must be at least 1")
        known = {*METHODS, *numbers.TASKS, *GROUPS}
        for name in self.only:
            if name not in known:
                raise unknown("method or task", name, known)

    def wants(self, method: str, task: str | None = None) -> bool:
        """Whether `only` asks for a method and a task. Where it names methods alone, all tasks are kept, and the other
        way round."""
        methods = [name for name in self.only if name in METHODS]
        tasks = [name for name in self.only if name not in METHODS]
        return (not methods or method in methods) and (task is None or not tasks or task in tasks)

    @property
    def suffix(self) -> str:
        """The part of a file's name that says what was left out, so that part of a table never replaces the whole."""
        parts = [*self.only, *([f"first{self.limit}"] if self.limit else []), *(["sweep"] if self.sweep else [])]
        return "".join(f"_{part}" for part in [*parts, *([f"{self.length}tokens"] if self.length != LENGTH else [])])

    def scaled(self, length: int) -> int:
        return max(1, length * self.length // LENGTH)


@dataclass(frozen=True)
class Study:
    """The reproduction of the paper with one model: its settings, its data, and the folder of the results."""

    model: DiffusionLM
    out: Path
    data_dir: Path | None = None
    """Folder with the data sets; None: they are fetched from the public hubs, as far as those have them."""
    settings: str = "auto"
    """The model whose settings in the paper are used, llada or dream; auto: by this model's kind."""
    scope: Scope = field(default_factory=Scope)
    batch: int = 1
    chat: Chat = "auto"
    confirm_unsafe_code: bool = False
    tell: Callable[[str], None] = lambda text: None
    progress: Callable[[int], None] = lambda n: None
    written: list[Path] = field(default_factory=list)
    """The files that reports and figures' data went to so far."""

    def __post_init__(self) -> None:
        if self.settings not in ("auto", *numbers.MAIN):
            raise unknown("settings", self.settings, ("auto", *numbers.MAIN))

    @property
    def family(self) -> str:
        if self.settings != "auto":
            return self.settings
        return "dream" if self.model.network.lookback else "llada"

    @property
    def is_first(self) -> bool:
        """Whether this process, of those that share the work, writes the reports."""
        return World.from_environment().rank == 0

    def only_llada(self, table: str) -> None:
        if self.family != "llada":
            raise DapdError(
                f"the paper has the table {table!r} for LLaDA only; to run it with LLaDA's settings anyway, "
                "add --settings llada"
            )

    def cells(self, cells: Iterable[Cell]) -> list[Cell]:
        """The cells that are asked for, at the length that is asked for."""
        every = list(cells)
        chosen = self.chosen((cell.method, cell.task) for cell in every)
        return [replace(c, length=self.scope.scaled(c.length)) for c in every if (c.method, c.task) in chosen]

    def chosen(self, pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """The pairs of method and task that are asked for, of those that a table has."""
        every = list(pairs)
        wanted = [(method, task) for method, task in every if self.scope.wants(method, task)]
        if not wanted:
            there = ", ".join(dict.fromkeys(name for side in zip(*every, strict=True) for name in side))
            raise DapdError(f"nothing is left of the table with --only {','.join(self.scope.only)}; it has {there}")
        return wanted

    def harness(self, cell: Cell) -> EvalOptions:
        return EvalOptions(
            max_new_tokens=cell.length,
            limit=self.scope.limit,
            shots=self.scope.shots,
            chat=self.chat,
            batch=self.batch,
            data_dir=self.data_dir,
            confirm_unsafe_code=self.confirm_unsafe_code,
            loop=cell.loop,
        )

    def plan(self, setting: Setting, length: int, loop: Options | None = None) -> Plan:
        return Plan(setting, self.scope.scaled(length), loop or Options(), self.batch)

    def folder(self, *names: str) -> Path:
        return self.out.joinpath("runs", *names)

    def file(self, name: str, ending: str) -> Path:
        """The path of the file for a report or a figure's data."""
        return self.out / f"{name}{self.scope.suffix}{ending}"

    def write(self, name: str, ending: str, text: str) -> None:
        """Write a report or a figure's data, if this is the process that writes (see `is_first`)."""
        if self.is_first:
            make_folder(self.out)
            self.written.append(write_text(self.file(name, ending), text))

    def write_json(self, name: str, content: object) -> None:
        self.write(name, ".json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")

    def data(self, name: str) -> Path | None:
        """The folder of one data set: a folder of its name below the one that the user named, or that one itself."""
        if self.data_dir is None:
            return None
        if not self.data_dir.is_dir():
            raise DapdError(f"--data-dir {self.data_dir}: there is no such folder")
        inner = self.data_dir / name
        return inner if inner.is_dir() else self.data_dir

    def notes(self) -> list[str]:
        """The reasons, a sentence each, why these numbers are not comparable with the paper's."""
        scope = self.scope
        out = []
        if scope.limit is not None:
            out.append(f"Only the first {scope.limit} of each task's samples were run: not comparable with the paper.")
        if scope.length != LENGTH:
            out.append(f"Lengths are {scope.length / LENGTH:g} of the paper's: not comparable with it.")
        if scope.shots is not None:
            out.append(f"{scope.shots} examples in lm-eval's prompts instead of its defaults.")
        if self.model.name.startswith("random:"):
            out.append("The weights are random: this shows that everything runs, and nothing else.")
        return out
