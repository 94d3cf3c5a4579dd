"""Prompts decoded into a folder of results, one by one, so that a killed run goes on where it was."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dapd.decoding import Options
from dapd.errors import DapdError
from dapd.evaluation.fingerprint import fingerprint
from dapd.evaluation.ledger import Job, Ledger, digest
from dapd.evaluation.runs import Record, Run
from dapd.evaluation.world import World
from dapd.generation import Completion, DiffusionLM
from dapd.models.chat import Messages
from dapd.settings import Setting, describe

SEED_STEP = 1_000_003
"""Prompt i draws with the seed `seed * SEED_STEP + i`: the same numbers whatever batch it is decoded in."""


@dataclass(frozen=True)
class Query:
    """A prompt and the name that its result is kept under."""

    key: str
    messages: Messages


@dataclass(frozen=True)
class Plan:
    """How prompts are decoded."""

    setting: Setting
    length: int = 256
    """How many new tokens are decoded."""
    loop: Options = field(default_factory=Options)
    batch: int = 1
    """Prompts decoded together: it changes the time, not the results."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("length", "batch"):
            if getattr(self, name) < 1:
                raise DapdError(f"{name} is {getattr(self, name)}; it must be at least 1")

    def setup(self, model: DiffusionLM) -> dict[str, Any]:
        """The settings that must agree for two results to belong together."""
        return {
            "model": model.name,
            "weights": fingerprint(model),
            "strategy": describe(self.setting.strategy),
            "n_blocks": self.setting.n_blocks,
            "length": self.length,
            "loop": dataclasses.asdict(self.loop),
            "seed": self.seed,
        }


def decode_all(
    model: DiffusionLM,
    plan: Plan,
    queries: Sequence[Query],
    run: Run,
    keep: Callable[[Query, Completion], Record] = lambda query, done: {},
    progress: Callable[[int], None] = lambda n: None,
) -> list[Record]:
    """The results of all prompts, in order; those that the folder does not hold yet are decoded and appended to it.

    Several processes divide the prompts among them, and each returns all results. A prompt whose text has changed since
    is decoded again, and the old result stays in the folder.
    """
    jobs = [_job(place, query) for place, query in enumerate(queries)]

    def work(missing: list[Job[tuple[int, Query]]]) -> Iterator[Record]:
        seeds = tuple(plan.seed * SEED_STEP + place for place, _ in (job.what for job in missing))
        canvases = [model.canvas(prompt(model, job.what[1].messages), plan.length) for job in missing]
        options = dataclasses.replace(plan.loop, seed=seeds)
        done = model.complete(canvases, strategy=plan.setting, options=options, batch_size=plan.batch)
        for number, completion in done:
            job = missing[number]
            yield {**_record(job, completion), **keep(job.what[1], completion)}

    ledger = Ledger(run, lambda record: (record["key"], record["digest"]), World.from_environment())
    return ledger.fill(jobs, work, progress)


def prompt(model: DiffusionLM, messages: Messages) -> Messages | str:
    """A conversation as the model takes it; a model without a chat template reads the turns as paragraphs."""
    if model.tokenizer.has_chat:
        return messages
    return "\n\n".join(message["content"] for message in messages) + "\n\n"


def _job(place: int, query: Query) -> Job[tuple[int, Query]]:
    text = digest(list(query.messages))
    return Job((query.key, text), text, (place, query))


def _record(job: Job[Any], done: Completion) -> Record:
    return {
        "key": job.key[0],
        "digest": job.digest,
        "text": done.text,
        "nfe": done.nfe,
        "tokens": done.n_generated,
        "seconds": round(done.compute_seconds, 6),
    }


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def tokens_per_second(records: Sequence[Record]) -> float:
    """Generated tokens of the texts over generation time."""
    return float(sum(r["tokens"] for r in records) / max(1e-9, sum(r["seconds"] for r in records)))
