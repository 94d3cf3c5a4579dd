"""lm-eval's model interface around a diffusion model: batched by length, resumable, split over processes."""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from lm_eval.api.model import LM

from dapd.errors import DapdError
from dapd.evaluation.harness.likelihood import log_likelihood
from dapd.evaluation.harness.options import EvalOptions
from dapd.evaluation.harness.prompts import Prompter, chat_mode, conversation, cut, fenced
from dapd.evaluation.ledger import Job, Ledger, digest
from dapd.evaluation.runs import RESULTS, Record, Run
from dapd.evaluation.world import World
from dapd.generation import Completion, DiffusionLM
from dapd.settings import Setting, describe

Key = tuple[str, int, int, int]
"""Name of the task, number of the document, number of the request within the document, number of the repeat."""


def jobs_of(requests: Sequence[Any]) -> list[Job[Any]]:
    """A job per request, in order; requests that are asked several times are told apart by their repeat."""
    repeats: Counter[tuple[str, int, int]] = Counter()
    jobs = []
    for request in requests:
        place = (str(request.task_name), int(request.doc_id or 0), int(request.idx))
        jobs.append(Job((*place, repeats[place]), digest(request.request_type, *request.args), request))
        repeats[place] += 1
    return jobs


def key_of(record: Record) -> Key:
    return record["task"], record["doc"], record["idx"], record["repeat"]


HEAD: dict[str, type | tuple[type, ...]] = {"task": str, "doc": int, "idx": int, "repeat": int, "digest": str}
COSTS: dict[str, type | tuple[type, ...]] = {"nfe": int, "tokens": int, "seconds": (int, float)}
COLUMNS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "generate": {
        **HEAD,
        **COSTS,
        "text": str,
        "loop_seconds": (int, float),
        "prompt_tokens": int,
        "fast_dllm_tokens": int,
    },
    "likelihood": {**HEAD, **COSTS, "logprob": (int, float), "greedy": bool},
}
"""The columns that a result of each kind must have: a missing number would count as 0 in a table of means."""


def check_records(records: Sequence[Record], where: str) -> None:
    """Refuse results that lack a column or hold a value of another type; the error names their line."""
    for number, record in enumerate(records, 1):
        kind = record.get("kind")
        columns = COLUMNS.get(kind) if isinstance(kind, str) else None
        if columns is None:
            raise DapdError(f"{where}, line {number}: kind is {kind!r}; a result is one of {', '.join(COLUMNS)}")
        for name, types in columns.items():
            if not isinstance(record.get(name), types):
                raise DapdError(
                    f"{where}, line {number}: {name} is {record.get(name)!r}, which no run writes; delete the line "
                    "to have that answer made again, or choose another folder with --out"
                )


@dataclass
class Ready:
    """A prompt that is ready to be decoded."""

    job: Job[Any]
    ids: list[int]
    n_new: int
    until: list[str]
    seconds: float
    """The time that encoding the prompt took."""


def ledger(run: Run | None = None, world: World | None = None) -> Ledger:
    """The ledger of a run, whose results must have all their columns; without a run it starts empty, in memory."""
    if run is not None:
        check_records(run.records(), str(run.folder / RESULTS))
    return Ledger(run, key_of, world)


class HarnessLM(LM):  # type: ignore[misc]
    """A diffusion model as lm-eval sees it.

    lm-eval is told that there is one process, however many there are: otherwise it would draw other examples for the
    prompts of every rank, and the table would depend on the number of processes. The requests are split here instead.
    """

    def __init__(
        self,
        model: DiffusionLM,
        setting: Setting,
        options: EvalOptions,
        run: Run | None = None,
        world: World | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.setting = setting
        self.options = options
        self.prompter = Prompter(model.tokenizer, chat_mode(options.chat, model.tokenizer))
        self.ledger = ledger(run, world)
        self.prefix: Callable[[Any], str] = lambda request: ""
        """Gives the end of a request's context that counts as the beginning of the answer."""
        self.on_progress: Callable[[int], None] = lambda n: None

    @property
    def tokenizer_name(self) -> str:
        return self.model.name

    def chat_template(self, chat_template: bool | str = False) -> str:
        return self.prompter.chat

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return conversation(chat_history)

    def generate_until(self, requests: list[Any]) -> list[str]:
        return [record["text"] for record in self.answers(requests, self._generate)]

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        return [(record["logprob"], record["greedy"]) for record in self.answers(requests, self._likelihoods)]

    def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
        return [record["logprob"] for record in self.answers(requests, self._likelihoods)]

    def answers(self, requests: Sequence[Any], work: Callable[[list[Job[Any]]], Iterable[Record]]) -> list[Record]:
        """A record per request. Those that are not held yet are made by `work`, a share of them in this process."""
        return self.ledger.fill(jobs_of(requests), work, self.on_progress)

    def seed_of(self, key: Key) -> int:
        return zlib.crc32(repr((self.options.seed, *key)).encode())

    def _generate(self, jobs: list[Job[Any]]) -> Iterator[Record]:
        ready = [self._ready(job) for job in jobs]
        canvases = [self.model.canvas(one.ids, one.n_new) for one in ready]
        loop = replace(self.options.loop, seed=tuple(self.seed_of(one.job.key) for one in ready))
        for number, completion in self.model.complete(
            canvases, strategy=self.setting, options=loop, batch_size=self.options.batch
        ):
            yield self._record(ready[number], completion)

    def _ready(self, job: Job[Any]) -> Ready:
        context, wanted = job.what.args
        began = time.perf_counter()
        ids = self.prompter.ids(context, self.prefix(job.what))
        seconds = time.perf_counter() - began
        n_new = self.options.max_new_tokens or int(wanted.get("max_gen_toks", 256))
        room = self.model.network.max_length
        if len(ids) + n_new > room:
            raise DapdError(
                f"{job.key[0]}, document {job.key[1]}: a prompt of {len(ids)} tokens and {n_new} new ones; the model "
                f"takes {room} in all; give fewer examples (--shots) or fewer new tokens (-n)"
            )
        until = wanted.get("until") or []
        return Ready(job, ids, n_new, [until] if isinstance(until, str) else list(until), seconds)

    def _record(self, ready: Ready, completion: Completion) -> Record:
        began = time.perf_counter()
        text = self._answer(ready, completion)
        counted = self._fast_dllm_tokens(ready, completion)
        around = ready.seconds + time.perf_counter() - began
        settings = {
            "strategy": describe(self.setting.strategy),
            "max_new_tokens": ready.n_new,
            **asdict(self.setting.with_blocks(self.options.loop)),
        }
        del settings["seed"]
        return _head(ready.job, "generate") | {
            "text": text,
            "nfe": completion.nfe,
            "tokens": completion.n_generated,
            "seconds": round(completion.compute_seconds, 6),
            "loop_seconds": round(completion.compute_seconds + around, 6),
            "prompt_tokens": len(ready.ids),
            "fast_dllm_tokens": counted,
            "finish": completion.finish_reason,
            "settings": settings,
        }

    def _answer(self, ready: Ready, completion: Completion) -> str:
        """The part of a completion that is scored."""
        option = self.options.fenced_code
        wanted = self.prompter.chat != "none" if option is None else option
        # Only in `humaneval` does the prompt begin the function; its variants for chats begin the block themselves.
        block = fenced(completion.text) if wanted and ready.job.key[0] == "humaneval" else None
        return cut(completion.text, ready.until) if block is None else block

    def _fast_dllm_tokens(self, ready: Ready, completion: Completion) -> int:
        """Tokens as Fast-dLLM's harness counts them: HumanEval's as generated, others cut and tokenised again."""
        eos = self.model.network.profile.eos_id
        ids = completion.ids
        if not ready.job.key[0].startswith("humaneval"):
            text = cut(self.model.tokenizer.decode(ids, skip_special=False), ready.until)
            ids = self.model.tokenizer.encode(text, special=False)
        return sum(i != eos for i in ids)

    def _likelihoods(self, jobs: list[Job[Any]]) -> Iterator[Record]:
        samples = self.options.mc_samples
        asked = [Weighed(self._pieces(job), samples, self.seed_of(job.key)) for job in jobs]
        for number, (value, seconds) in self.model.each(weigh, asked):
            pieces = asked[number].pieces
            costs = {"nfe": samples * len(pieces), "tokens": sum(len(after) for _, after in pieces), "seconds": seconds}
            yield _head(jobs[number], "likelihood") | {"logprob": value, "greedy": False} | costs

    def _pieces(self, job: Job[Any]) -> list[tuple[list[int], list[int]]]:
        """Token ids of a request's context and continuation. A text without context is cut into pieces that fit."""
        room = self.model.network.max_length
        if len(job.what.args) == 1:
            ids = self.model.tokenizer.encode(job.what.args[0])
            return [([], ids[first : first + room]) for first in range(0, len(ids), room)]
        before, after = self.prompter.pair(*job.what.args)
        if len(before) + len(after) > room:
            raise DapdError(
                f"{job.key[0]}, document {job.key[1]}: {len(before) + len(after)} tokens; the model takes {room}; "
                "give fewer examples (--shots)"
            )
        return [(before, after)]


@dataclass(frozen=True)
class Weighed:
    """A text whose likelihood is asked for, in pieces that fit the model."""

    pieces: list[tuple[list[int], list[int]]]
    """Token ids of the context and the continuation of each piece."""
    samples: int
    seed: int


def weigh(model: DiffusionLM, asked: Weighed) -> tuple[float, float]:
    """The log-likelihood of a text, and the seconds that it took."""
    began = time.perf_counter()
    values = [
        log_likelihood(model.network, before, after, asked.samples, asked.seed + number)
        for number, (before, after) in enumerate(asked.pieces)
    ]
    return sum(values, 0.0), round(time.perf_counter() - began, 6)


def _head(job: Job[Any], kind: str) -> Record:
    task, doc, idx, repeat = job.key
    return {"kind": kind, "task": task, "doc": doc, "idx": idx, "repeat": repeat, "digest": job.digest}
