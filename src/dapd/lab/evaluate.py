"""Step-by-step decoding of test prompts: one token a step, the surest first. The ceiling for any faster decoder.

Where it starts and how it treats EOS decides much of the score: in one long block it commits the EOS of the canvas'
end first, then one EOS after the other towards the front, and leaves too little room for the answer. So a model is
scored in several ways, and its ceiling is the best of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from dapd.canvas import Canvas
from dapd.decoding import Options, decode
from dapd.decoding.sampling import EosPolicy, Sampling
from dapd.lab.tasks import Task
from dapd.lab.tokenizer import LabTokenizer
from dapd.models.base import MaskedLM
from dapd.strategies import TopK


@dataclass(frozen=True)
class Way:
    """A way to decode step by step: the length of the blocks, left to right, and what becomes of EOS."""

    block: int | None = None
    """None: one block."""
    eos: EosPolicy = "none"

    @property
    def label(self) -> str:
        block = "one block" if self.block is None else f"block {self.block}"
        return block if self.eos == "none" else f"{block}, EOS {self.eos}"

    def fits(self, room: int) -> bool:
        """Whether a canvas of `room` tokens can be decoded this way, and is not one block anyway."""
        return self.block is None or (self.block < room and room % self.block == 0)

    def options(self) -> Options:
        """The way as the loop's options."""
        sampling = Sampling(eos=self.eos)
        return Options(block_length=self.block, sampling=sampling, early_stop=True, confidence_dtype="float32")


@dataclass(frozen=True)
class TaskScore:
    """How one task went."""

    task: str
    prompts: int
    score: float
    """Mean score: for several questions the share of right answers."""
    whole: float
    """Share of prompts with nothing wrong at all."""
    misses: tuple[tuple[str, str], ...]
    """A few prompts that went wrong, with what the model said."""


def blank(model: MaskedLM, prompts: Sequence[Sequence[int]], n_new: int) -> list[Canvas]:
    """The prompts with `n_new` masks after each."""
    return [Canvas.blank(prompt, n_new, mask_id=model.profile.mask_id) for prompt in prompts]


def step_by_step(
    model: MaskedLM, prompts: Sequence[Sequence[int]], n_new: int, way: Way | None = None
) -> Int[Tensor, "batch n"]:
    """Fill `n_new` masks after each prompt, one in each row a step: where the model is surest of its first choice."""
    canvases = blank(model, prompts, n_new)
    for step in decode(model, canvases, TopK(), (way or Way()).options()):
        canvases[int(str(step.row))] = step.canvas
    return torch.stack([canvas.tokens[canvas.start :] for canvas in canvases])


@dataclass(frozen=True)
class Exam:
    """Test prompts to score a model on."""

    n: int
    """Prompts a task."""
    seed: int = 0
    batch: int = 256


def evaluate(
    model: MaskedLM, tokenizer: LabTokenizer, tasks: Sequence[Task], exam: Exam, way: Way | None = None
) -> Iterator[TaskScore]:
    """The score of each task on test prompts, decoded in one way."""
    for task in tasks:
        asked = task.examples(exam.n, exam.seed)
        said: list[str] = []
        for first in range(0, exam.n, exam.batch):
            prompts = [tokenizer.chat(example.prompt) for example in asked[first : first + exam.batch]]
            said += [tokenizer.decode(row) for row in step_by_step(model, prompts, task.room, way).tolist()]
        scores = [task.score(example, text) for example, text in zip(asked, said, strict=True)]
        wrong = [(e.prompt, text) for e, text, s in zip(asked, said, scores, strict=True) if s < 1]
        yield TaskScore(task.name, exam.n, sum(scores) / exam.n, 1 - len(wrong) / exam.n, tuple(wrong[:3]))


def evaluate_ways(
    model: MaskedLM, tokenizer: LabTokenizer, task: Task, exam: Exam, ways: Sequence[Way]
) -> dict[Way, TaskScore]:
    """The score of one task decoded in several ways; ways that its canvas does not allow are left out."""
    fitting = [way for way in ways if way.fits(task.room)]
    return {way: next(evaluate(model, tokenizer, [task], exam, way)) for way in fitting}
