"""Strategies x settings x tasks on one model: every prompt's score and forward passes, kept as they come in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from dapd.decoding import Options
from dapd.errors import DapdError
from dapd.evaluation.decoding import SEED_STEP, prompt
from dapd.evaluation.runs import Run
from dapd.fields import split_pair
from dapd.generation import DiffusionLM
from dapd.lab.evaluate import examples
from dapd.lab.tasks import Task
from dapd.settings import LOOP, Setting, changed, route, setting, with_fields


@dataclass(frozen=True)
class Decoder:
    """A strategy under one choice of its knobs."""

    family: str
    """The preset's name: points of one family form a curve."""
    setting: Setting
    options: Options
    knobs: Mapping[str, str]
    """What was changed from the preset, as it was written."""

    @property
    def label(self) -> str:
        return " ".join([self.family, *(f"{key}={value}" for key, value in self.knobs.items())])


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
    """Generated tokens before the first EOS."""
    seconds: float
    """Its share of the time of its forward passes."""


def decoders(spec: str) -> list[Decoder]:
    """The decoders of `name` or `name:knob=a/b/c,other=d/e`: every combination of the values."""
    name, _, rest = spec.partition(":")
    chosen = setting(name)
    sweeps: dict[str, list[str]] = {}
    for part in filter(None, rest.split(",")):
        knob, listed = split_pair(part, f"in {spec!r},")
        sweeps[knob] = listed.split("/")
    out = []
    for values in product(*sweeps.values()):
        knobs = dict(zip(sweeps, values, strict=True))
        own, loop = route(knobs, [type(chosen.strategy), LOOP], f"field of {name} or of the loop")
        strategy = changed(chosen.strategy, own)
        out.append(Decoder(name, replace(chosen, strategy=strategy), with_fields(Options(), loop), knobs))
    return out


@dataclass(frozen=True)
class Comparison:
    """What is compared on what."""

    model: DiffusionLM
    decoders: Sequence[Decoder]
    tasks: Sequence[Task]
    prompts: int = 100
    """How many test prompts of each task are decoded."""
    seed: int = 0
    batch: int = 32

    def setup(self) -> dict[str, Any]:
        """What must agree for results to be comparable. Decoders and tasks may be added later."""
        return {"model": self.model.name, "prompts": self.prompts, "seed": self.seed}

    def __len__(self) -> int:
        return len(self.decoders) * len(self.tasks) * self.prompts

    def run(self, folder: Path, progress: Callable[[int], None] = lambda n: None) -> list[Result]:
        """Decode whatever `folder` does not hold yet; results are appended as they come, so a killed run goes on."""
        run = Run.open(folder, self.setup(), "comparison")
        held = as_results(run)
        run.note_environment()
        known = {(r.decoder, r.task, r.example) for r in held}
        for decoder, task in [(d, t) for t in self.tasks for d in self.decoders]:
            missing = [i for i in range(self.prompts) if (decoder.label, task.name, i) not in known]
            progress(self.prompts - len(missing))
            for result in self._decode(decoder, task, missing):
                run.append([dataclasses.asdict(result)])
                held.append(result)
                progress(1)
        names = {d.label for d in self.decoders}
        return [r for r in held if r.decoder in names and r.task in {t.name for t in self.tasks}]

    def _decode(self, decoder: Decoder, task: Task, missing: Sequence[int]) -> Iterator[Result]:
        """Results as they come: as soon as one prompt is complete, the next takes its place in the batch."""
        if not missing:
            return
        asked = examples(task, self.prompts, self.seed)
        options = replace(decoder.options, seed=tuple(self.seed * SEED_STEP + i for i in missing))
        chats = [[{"role": "user", "content": asked[i].prompt}] for i in missing]
        canvases = [self.model.canvas(prompt(self.model, chat), task.room) for chat in chats]
        for number, completion in self.model.complete(
            canvases, strategy=decoder.setting, options=options, batch_size=self.batch
        ):
            example = missing[number]
            yield Result(
                decoder=decoder.label,
                family=decoder.family,
                task=task.name,
                example=example,
                score=task.score(asked[example], completion.text),
                nfe=completion.nfe,
                tokens=completion.n_generated,
                seconds=round(completion.compute_seconds, 6),
            )


def read_results(folder: Path) -> list[Result]:
    """The results of a folder. A last line that a kill cut short is dropped; any other damage is an error."""
    return as_results(Run(folder))


def as_results(run: Run) -> list[Result]:
    try:
        return [Result(**record) for record in run.records()]
    except TypeError as error:
        raise DapdError(f"{run.folder} holds results of another kind ({error}); nothing was changed") from None
