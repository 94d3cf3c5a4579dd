"""Step-by-step decoding of test prompts: one token per row and pass, the most confident one first. Its score is the
ceiling for any faster decoder.

The blocks and the treatment of EOS decide much of the score: in one long block, the EOS tokens at the end of the canvas
are committed first, then one EOS after the other towards the front, which leaves too little room for the answer. So a
model is scored in several ways, and its ceiling is the best of these scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor

from dapd.canvas import Canvas
from dapd.decoding import Options, decode
from dapd.decoding.sampling import EosPolicy, Sampling
from dapd.errors import DapdError
from dapd.lab.tasks import Task
from dapd.lab.tokenizer import LabTokenizer
from dapd.models.base import MaskedLM
from dapd.strategies import TopK


@dataclass(frozen=True)
class Way:
    """A way to decode step by step: the blocks, which are decoded from left to right, and the treatment of EOS."""

    block: int | None = None
    """Length of a block in tokens; None: `n_blocks` blocks of equal length."""
    eos: EosPolicy = "none"
    n_blocks: int = 1

    @property
    def label(self) -> str:
        number = "one block" if self.n_blocks == 1 else f"{self.n_blocks} blocks"
        block = number if self.block is None else f"block {self.block}"
        return block if self.eos == "none" else f"{block}, EOS {self.eos}"

    def fits(self, room: int) -> bool:
        """Whether a canvas of `room` tokens divides into these blocks. A `block` that covers the whole canvas does not
        fit, because that is the same as one block."""
        return room % self.n_blocks == 0 if self.block is None else self.block < room and room % self.block == 0

    def options(self) -> Options:
        """The way as the loop's options."""
        sampling = Sampling(eos=self.eos)
        return Options(self.block, self.n_blocks, sampling=sampling, early_stop=True, confidence_dtype="float32")


@dataclass(frozen=True)
class TaskScore:
    """The score of a model on one task."""

    task: str
    prompts: int
    score: float
    """Mean score of the prompts; a prompt with several questions scores the share of right answers."""
    whole: float
    """Share of prompts whose answer is entirely right."""
    misses: tuple[tuple[str, str], ...]
    """A few prompts that went wrong, with what the model said."""


def blank(model: MaskedLM, prompt: Sequence[int], n_new: int) -> Canvas:
    """The prompt with `n_new` of the model's masks after it."""
    return Canvas.blank(prompt, n_new, mask_id=model.profile.mask_id)


def step_by_step(model: MaskedLM, canvases: Sequence[Canvas], way: Way | None = None) -> list[Int[Tensor, " n"]]:
    """The new tokens of each canvas, decoded one per row and pass, the most confident one first."""
    filled = list(canvases)
    for step in decode(model, canvases, TopK(), (way or Way()).options()):
        filled[int(str(step.row))] = step.canvas
    return [canvas.tokens[canvas.start :] for canvas in filled]


@dataclass(frozen=True)
class Exam:
    """Test prompts to score a model on."""

    n: int
    """Prompts per task."""
    seed: int = 0
    batch: int = 256


def evaluate(
    model: MaskedLM, tokenizer: LabTokenizer, tasks: Sequence[Task], exam: Exam, way: Way | None = None
) -> Iterator[TaskScore]:
    """The score of each task on test prompts, decoded in one way, each on its own canvas."""
    for task in tasks:
        asked = task.examples(exam.n, exam.seed)
        said: list[str] = []
        for first in range(0, exam.n, exam.batch):
            some = asked[first : first + exam.batch]
            canvases = [blank(model, tokenizer.chat(e.prompt), task.canvas(e)) for e in some]
            said += [tokenizer.decode(row.tolist()) for row in step_by_step(model, canvases, way)]
        scores = [task.score(example, text) for example, text in zip(asked, said, strict=True)]
        wrong = [(e.prompt, text) for e, text, s in zip(asked, said, scores, strict=True) if s < 1]
        yield TaskScore(task.name, exam.n, sum(scores) / exam.n, 1 - len(wrong) / exam.n, tuple(wrong[:3]))


def evaluate_ways(
    model: MaskedLM, tokenizer: LabTokenizer, task: Task, exam: Exam, ways: Sequence[Way]
) -> dict[Way, TaskScore]:
    """The score of one task decoded in several ways; ways that its canvases do not allow are left out."""
    rooms = sorted({task.canvas(example) for example in task.examples(exam.n, exam.seed)})
    fitting = [way for way in ways if all(way.fits(room) for room in rooms)]
    if not fitting:
        asked = " or ".join(way.label for way in ways)
        lengths = ", ".join(map(str, rooms))
        raise DapdError(f"{task.name} cannot be decoded in {asked}: a block must be a part of its canvas ({lengths})")
    return {way: next(evaluate(model, tokenizer, [task], exam, way)) for way in fitting}
