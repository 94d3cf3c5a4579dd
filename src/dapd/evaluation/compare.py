"""Strategies x settings x tasks on one model: every prompt's score and forward passes, kept as they come in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from dapd.decoding import Options
from dapd.errors import DapdError
from dapd.evaluation.decoding import SEED_STEP, prompt
from dapd.evaluation.fingerprint import fingerprint
from dapd.evaluation.ledger import Job, Ledger, digest
from dapd.evaluation.runs import Record, Run
from dapd.generation import DiffusionLM
from dapd.lab.tasks import Example, Task
from dapd.settings import LOOP, Setting, changed, describe, named, route, split_spec, with_fields


@dataclass(frozen=True)
class Decoder:
    """A strategy under one choice of its knobs."""

    family: str
    """The preset's name: points of one family form a curve."""
    setting: Setting
    options: Options
    knobs: Mapping[str, str]
    """What was changed from the preset, as it was written."""

    def __post_init__(self) -> None:
        if self.options.seed != 0:
            raise DapdError(f"{self.label}: every prompt has its own seed; set the seed of the comparison (--seed)")

    @property
    def label(self) -> str:
        return " ".join([self.family, *(f"{key}={value}" for key, value in self.knobs.items())])

    def digest(self) -> str:
        """A checksum of the strategy and of all options: the same label may stand for other defaults or other code."""
        kind = type(self.setting.strategy)
        options = self.setting.with_blocks(self.options)
        return digest(kind.__module__, kind.__qualname__, describe(self.setting.strategy), dataclasses.asdict(options))


@dataclass(frozen=True)
class Result:
    """One prompt decoded once."""

    decoder: str
    family: str
    task: str
    example: int
    score: float
    nfe: int
    tokens: int
    """Generated tokens before the first EOS, or up to the end of the turn."""
    seconds: float
    """The prompt's share of the time of its forward passes."""
    digest: str = ""
    """A checksum of the decoder and of the prompt with its answer."""


def decoders(spec: str) -> list[Decoder]:
    """The decoders of `name` or `name:knob=a/b/c,other=d/e`: every combination of the values."""
    try:
        name, texts = split_spec(spec)
    except DapdError as error:
        raise DapdError(f"{error}; several values are separated by /: threshold=0.7/0.9") from None
    chosen = named(name)
    sweeps = {knob: listed.split("/") for knob, listed in texts.items()}
    out = []
    for values in product(*sweeps.values()):
        knobs = dict(zip(sweeps, values, strict=True))
        own, loop = route(knobs, [type(chosen.strategy), LOOP], f"field of {name} or of the loop")
        strategy = changed(chosen.strategy, own)
        out.append(Decoder(name, replace(chosen, strategy=strategy), with_fields(Options(), loop), knobs))
    return out


@dataclass(frozen=True)
class Comparison:
    """The decoders, tasks and model of a comparison, and the number of prompts."""

    model: DiffusionLM
    decoders: Sequence[Decoder]
    tasks: Sequence[Task]
    prompts: int = 100
    """How many test prompts of each task are decoded; a task of a file may have fewer."""
    seed: int = 0
    batch: int = 32

    def __post_init__(self) -> None:
        for what, names in (("decoder", [d.label for d in self.decoders]), ("task", [t.name for t in self.tasks])):
            for name in names:
                if names.count(name) > 1:
                    raise DapdError(f"the {what} {name!r} is named twice; every prompt would count twice")

    def setup(self) -> dict[str, Any]:
        """The settings that must agree for results to be comparable. Decoders and tasks may be added later: each result
        records its decoder and its prompt."""
        return {
            "model": self.model.name,
            "weights": fingerprint(self.model),
            "prompts": self.prompts,
            "seed": self.seed,
        }

    def run(self, folder: Path, progress: Callable[[int], None] = lambda n: None) -> list[Result]:
        """Decode whatever `folder` does not hold yet; results are appended as they come, so a killed run goes on."""
        drawn = [(task, task.examples(self.prompts, self.seed)) for task in self.tasks]
        # Opened only now: a task with too few prompts fails above, and leaves no set-up that a later run would not fit.
        ledger = Ledger(Run.open(folder, self.setup(), "comparison"), key_of)
        records: list[Record] = []
        for task, examples in drawn:
            for decoder in self.decoders:
                work = partial(self._decode, decoder, task)
                records += ledger.fill(self._jobs(decoder, task, examples), work, progress)
        return as_results(records, folder)

    def _jobs(self, decoder: Decoder, task: Task, examples: Sequence[Example]) -> list[Job[tuple[int, Example]]]:
        rule = decoder.digest()
        return [
            Job(
                (decoder.label, task.name, number),
                digest(rule, task.room, example.prompt, example.answer),
                (number, example),
            )
            for number, example in enumerate(examples)
        ]

    def _decode(self, decoder: Decoder, task: Task, jobs: Sequence[Job[tuple[int, Example]]]) -> Iterator[Record]:
        """Results as they come: as soon as one prompt is complete, the next takes its place in the batch."""
        seeds = tuple(self.seed * SEED_STEP + job.what[0] for job in jobs)
        chats = [[{"role": "user", "content": job.what[1].prompt}] for job in jobs]
        canvases = [self.model.canvas(prompt(self.model, chat), task.room) for chat in chats]
        for place, completion in self.model.complete(
            canvases, strategy=decoder.setting, options=replace(decoder.options, seed=seeds), batch_size=self.batch
        ):
            number, example = jobs[place].what
            yield dataclasses.asdict(
                Result(
                    decoder=decoder.label,
                    family=decoder.family,
                    task=task.name,
                    example=number,
                    score=task.score(example, completion.text),
                    nfe=completion.nfe,
                    tokens=completion.n_generated,
                    seconds=round(completion.compute_seconds, 6),
                    digest=jobs[place].digest,
                )
            )


def key_of(record: Record) -> tuple[str, str, int]:
    return record["decoder"], record["task"], record["example"]


def read_results(folder: Path) -> list[Result]:
    """The results of a folder. A last line that a kill cut short is dropped; any other damage is an error."""
    return as_results(Ledger(Run(folder), key_of).held.values(), folder)


def as_results(records: Iterable[Record], folder: Path) -> list[Result]:
    """Records as results; the error for records of another kind names `folder`."""
    try:
        return [Result(**record) for record in records]
    except TypeError as error:
        raise DapdError(f"{folder} holds results of another kind ({error}); nothing was changed") from None
