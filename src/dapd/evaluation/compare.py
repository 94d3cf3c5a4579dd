"""Strategies x settings x tasks on one model: every prompt's score and forward passes, kept as they come in."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from dapd.engine import Options
from dapd.errors import DapdError, unknown
from dapd.evaluation.decoding import SEED_STEP, generate_all
from dapd.evaluation.runs import Run
from dapd.generation import LOOP_FIELDS, Completion, DiffusionLM, with_settings
from dapd.lab.evaluate import examples
from dapd.lab.tasks import Task
from dapd.settings import Setting, changed, setting
from dapd.strategies import Strategy


@dataclass(frozen=True)
class Decoder:
    """A strategy under one choice of its knobs."""

    family: str
    """The preset's name: points of one family form a curve."""
    strategy: Strategy
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
    """Its share of its batch's time."""


def decoders(spec: str) -> list[Decoder]:
    """The decoders of `name` or `name:knob=a/b/c,other=d/e`: every combination of the values."""
    name, _, rest = spec.partition(":")
    found = setting(name).strategy
    own = {field.name for field in dataclasses.fields(found)}
    sweeps: dict[str, list[str]] = {}
    for part in filter(None, rest.split(",")):
        knob, equals, listed = part.partition("=")
        if not equals or not listed:
            raise DapdError(f"{part!r} in {spec!r} is not of the form knob=value or knob=value/value")
        sweeps[knob] = listed.split("/")
    out = []
    for values in product(*sweeps.values()):
        knobs = dict(zip(sweeps, values, strict=True))
        # A list of layers is written with +, because commas and slashes are taken.
        text = {key: value.replace("+", ",") for key, value in knobs.items()}
        loop = {key: value for key, value in text.items() if key not in own}
        wrong = [key for key in loop if key not in LOOP_FIELDS]
        if wrong:
            raise unknown(f"field of {name} or of the loop", wrong[0], own | LOOP_FIELDS)
        strategy = changed(found, {key: value for key, value in text.items() if key in own})
        out.append(Decoder(name, strategy, with_settings(Options(), loop), knobs))
    return out


@dataclass(frozen=True)
class Comparison:
    """What is compared on what."""

    model: DiffusionLM
    decoders: Sequence[Decoder]
    tasks: Sequence[Task]
    prompts: int = 100
    """Test prompts per task."""
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
            for results in self._decode(decoder, task, missing):
                run.append(dataclasses.asdict(r) for r in results)
                held += results
                progress(len(results))
        names = {d.label for d in self.decoders}
        return [r for r in held if r.decoder in names and r.task in {t.name for t in self.tasks}]

    def _decode(self, decoder: Decoder, task: Task, missing: Sequence[int]) -> Iterator[list[Result]]:
        if not missing:
            return
        asked = examples(task, self.prompts, self.seed)
        for first in range(0, len(missing), self.batch):
            indices = missing[first : first + self.batch]
            began = time.perf_counter()
            done = self._generate([asked[i].prompt for i in indices], decoder, task.room, indices)
            seconds = (time.perf_counter() - began) / len(indices)
            yield [
                Result(
                    decoder=decoder.label,
                    family=decoder.family,
                    task=task.name,
                    example=i,
                    score=task.score(asked[i], completion.text),
                    nfe=completion.nfe,
                    tokens=completion.generated_tokens,
                    seconds=round(seconds, 6),
                )
                for i, completion in zip(indices, done, strict=True)
            ]

    def _generate(self, prompts: list[str], decoder: Decoder, room: int, indices: Sequence[int]) -> list[Completion]:
        chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
        options = dataclasses.replace(decoder.options, seed=tuple(self.seed * SEED_STEP + i for i in indices))
        return generate_all(self.model, chats, Setting(decoder.strategy), room, options)


def read_results(folder: Path) -> list[Result]:
    """The results of a folder. A last line that a kill cut short is dropped; any other damage is an error."""
    return as_results(Run(folder))


def as_results(run: Run) -> list[Result]:
    try:
        return [Result(**record) for record in run.records()]
    except TypeError as error:
        raise DapdError(f"{run.folder} holds results of another kind ({error}); nothing was changed") from None
