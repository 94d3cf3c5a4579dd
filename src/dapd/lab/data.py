"""The pool of training rows: made from a seed in parallel, kept as 16-bit token ids, one tensor for each row length.

A row is `prompt, answer, end of turn, EOS to the end`; EOS is a token to predict, so there is no padding to mask out.
The length of a row is the smallest of `LENGTHS` that holds its prompt and its answer, or, for a share of the rows, its
prompt and the canvas on which such a prompt is decoded: the answers of these are followed by as many EOS tokens as in
decoding. Some rows start with EOS tokens, which moves the answer along the row, so that the model sees answers with any
number of EOS tokens after them.
"""

from __future__ import annotations

import bisect
import multiprocessing
import os
import random
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass

import torch
from jaxtyping import Int16
from torch import Tensor

from dapd.lab.settings import LENGTHS, TrainSettings
from dapd.lab.tasks import TASKS, Example, Split
from dapd.lab.tokenizer import LabTokenizer

CHUNK = 4000
"""Rows per call of `make_chunk`. The pool depends on this number and the seed, not on the number of processes."""

SHIFTED = 0.3
"""Share of rows that begin with EOS tokens."""


Chunk = list[tuple[bytes, bytes, bytes, bytes]]
"""For each length the tokens, starts, answer lengths and tasks of its rows, as raw 16-bit numbers."""


@dataclass(frozen=True)
class ChunkSpec:
    """The settings of one chunk of rows, small enough to be sent cheaply to another process."""

    tasks: tuple[str, ...]
    shares: tuple[float, ...]
    split: Split
    seed: str
    rows: int
    roomy: float


@dataclass(frozen=True)
class Rows:
    """Rows of one length."""

    tokens: Int16[Tensor, "rows length"]
    start: Int16[Tensor, " rows"]
    """Column of the first answer token."""
    answer: Int16[Tensor, " rows"]
    """Number of answer tokens, the end of turn included."""
    task: Int16[Tensor, " rows"]
    """Index of the task in the `tasks` of the settings."""

    def __len__(self) -> int:
        return len(self.tokens)

    def to(self, device: torch.device) -> Rows:
        return Rows(*(tensor.to(device) for tensor in vars(self).values()))


class _GrowingRows:
    """The fields of `Rows` for one length as flat arrays, to which rows are appended."""

    def __init__(self) -> None:
        self.tokens, self.start, self.answer, self.task = (array("h") for _ in range(4))

    def dump(self) -> tuple[bytes, bytes, bytes, bytes]:
        return self.tokens.tobytes(), self.start.tobytes(), self.answer.tobytes(), self.task.tobytes()


def make_chunk(spec: ChunkSpec) -> Chunk:
    """Make a chunk of rows by length, as raw bytes: these are copied to another process without shared memory."""
    rng = random.Random(spec.seed)
    tokenizer = LabTokenizer.build()
    columns = [_GrowingRows() for _ in LENGTHS]
    for number in rng.choices(range(len(spec.tasks)), spec.shares, k=spec.rows):
        task = TASKS[spec.tasks[number]]
        example = task.make(rng, spec.split)
        prompt, answer = encode(tokenizer, example)
        region = task.canvas(example) if rng.random() < spec.roomy else len(answer)
        place = bisect.bisect_left(LENGTHS, len(prompt) + region)
        spare = LENGTHS[place] - len(prompt) - len(answer)
        shift = rng.randint(0, spare) if rng.random() < SHIFTED else 0
        own = columns[place]
        eos = [tokenizer.eos_id]
        own.tokens.extend([*eos * shift, *prompt, *answer, *eos * (spare - shift)])
        own.start.append(shift + len(prompt))
        own.answer.append(len(answer))
        own.task.append(number)
    return [part.dump() for part in columns]


def encode(tokenizer: LabTokenizer, example: Example) -> tuple[list[int], list[int]]:
    """The ids of an example's prompt, in the chat format, and of its answer with the end of turn."""
    return tokenizer.chat(example.prompt), [*tokenizer.encode(example.answer), tokenizer.eot_id]


def chunk_specs(settings: TrainSettings) -> Iterator[ChunkSpec]:
    """The specifications of all chunks of the training pool."""
    for number, first in enumerate(range(0, settings.rows, CHUNK)):
        size = min(CHUNK, settings.rows - first)
        seed = f"train/{settings.seed}/{number}"
        yield ChunkSpec(settings.tasks, settings.shares, Split.TRAIN, seed, size, settings.roomy)


def typical(settings: TrainSettings) -> list[Rows]:
    """A chunk of rows drawn like those of the pool, but the same for every seed. Batch shapes are derived from it, so
    that they are the same for every seed, too."""
    return join([make_chunk(ChunkSpec(settings.tasks, settings.shares, Split.TRAIN, "typical", CHUNK, settings.roomy))])


def held_out(settings: TrainSettings, rows: int) -> list[Rows]:
    """Rows of the test split, about equally many of each task."""
    shares = tuple(1.0 for _ in settings.tasks)
    spec = ChunkSpec(settings.tasks, shares, Split.TEST, f"probe/{settings.seed}", rows, settings.roomy)
    return join([make_chunk(spec)])


class PoolMaker:
    """Makes the pool in other processes while this one continues. It forks: create it before a GPU is touched."""

    def __init__(self, settings: TrainSettings) -> None:
        self._specs = list(chunk_specs(settings))
        # Two cores are left for the compiler, which works at the same time.
        cores = max(1, (os.cpu_count() or 1) - 2)
        workers = min(settings.workers or cores, len(self._specs))
        self._executor: ProcessPoolExecutor | None = None
        self._futures: list[Future[Chunk]] = []
        if workers > 1:
            method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
            self._executor = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context(method))
            self._futures = [self._executor.submit(make_chunk, spec) for spec in self._specs]

    def result(self) -> list[Rows]:
        """The rows of each length, in the order of the chunks."""
        if self._executor is None:
            return join([make_chunk(spec) for spec in self._specs])
        with self._executor:
            return join([future.result() for future in self._futures])


def join(chunks: Sequence[Chunk]) -> list[Rows]:
    """Chunks put together, one `Rows` for each length."""
    joined: list[Rows] = []
    for place, length in enumerate(LENGTHS):
        tokens, start, answer, task = (_tensor([chunk[place][part] for chunk in chunks]) for part in range(4))
        joined.append(Rows(tokens.view(-1, length), start, answer, task))
    return joined


def _tensor(parts: list[bytes]) -> Int16[Tensor, " n"]:
    buffer = bytearray(b"".join(parts))
    return torch.frombuffer(buffer, dtype=torch.int16) if buffer else torch.zeros(0, dtype=torch.int16)
