"""Step-by-step decoding of test prompts: one token a step, the surest first. The ceiling for any faster decoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from dapd.canvas import Canvas
from dapd.decoding import Options, decode
from dapd.lab.tasks import Task
from dapd.lab.tokenizer import LabTokenizer
from dapd.models.base import MaskedLM
from dapd.strategies import TopK


@dataclass(frozen=True)
class TaskScore:
    """How one task went."""

    task: str
    prompts: int
    score: float
    """Mean score: for bundles the share of right answers."""
    whole: float
    """Share of prompts with nothing wrong at all."""
    misses: tuple[tuple[str, str], ...]
    """A few prompts that went wrong, with what the model said."""


def step_by_step(model: MaskedLM, prompts: Sequence[Sequence[int]], n_new: int) -> Int[Tensor, "batch n"]:
    """Fill `n_new` masks after each prompt, one in each row a step: where the model is surest of its first choice."""
    canvases = [Canvas.blank(prompt, n_new, mask_id=model.profile.mask_id) for prompt in prompts]
    for step in decode(model, canvases, TopK(), Options(confidence_dtype="float32")):
        canvases[int(str(step.row))] = step.canvas
    return torch.stack([canvas.tokens[canvas.start :] for canvas in canvases])


def evaluate(
    model: MaskedLM, tokenizer: LabTokenizer, tasks: Sequence[Task], n: int, *, seed: int = 0, batch: int = 256
) -> Iterator[TaskScore]:
    """The score of each task on `n` test prompts."""
    for task in tasks:
        asked = task.examples(n, seed)
        said: list[str] = []
        for first in range(0, n, batch):
            prompts = [tokenizer.chat(example.prompt) for example in asked[first : first + batch]]
            said += [tokenizer.decode(row) for row in step_by_step(model, prompts, task.room).tolist()]
        scores = [task.score(example, text) for example, text in zip(asked, said, strict=True)]
        wrong = [(e.prompt, text) for e, text, s in zip(asked, said, scores, strict=True) if s < 1]
        yield TaskScore(task.name, n, sum(scores) / n, 1 - len(wrong) / n, tuple(wrong[:3]))
