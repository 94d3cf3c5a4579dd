"""A model that answers from the gold files: with it the scorers must give full marks (`dapd eval --gold`).

Anything less than full marks is a fault of the harness or of the data, not of a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from dapd.canvas import Canvas
from dapd.errors import DapdError
from dapd.evaluation.harness.data import GSM8K, HUMANEVAL, IFEVAL, MATH500, MBPP, LocalData
from dapd.evaluation.harness.options import EvalOptions, TaskSummary
from dapd.evaluation.harness.run import evaluate
from dapd.evaluation.rows import Row
from dapd.generation import Completion, DiffusionLM
from dapd.models.base import Profile
from dapd.models.tokenizer import ByteTokenizer
from dapd.settings import Setting
from dapd.strategies import TopK
from dapd.trace import Record, Trace

TASKS = ("gsm8k", "humaneval", "minerva_math500", "mbpp", "ifeval")

EXPECTED = {"gsm8k": 100.0, "humaneval": 100.0, "minerva_math500": 100.0, "mbpp": 99.0}
"""The least the gold answers must score. One MBPP task needs set-up code that lm-eval leaves out."""


def _math(row: Row) -> str:
    return f" {row['solution']}\nFinal Answer: The final answer is ${row['answer']}$. I hope it is correct."


def _mbpp_prompt(row: Row) -> str:
    return "Your code should pass these tests:\n\n" + "\n".join(row["test_list"][:3]) + "\n[BEGIN]\n"


ANSWERS: Sequence[tuple[LocalData, Callable[[Row], str], Callable[[Row], str]]] = (
    (GSM8K, lambda row: f"Question: {row['question']}\nAnswer:", lambda row: f" {row['answer']}"),
    (HUMANEVAL, lambda row: str(row["prompt"]), lambda row: str(row["canonical_solution"])),
    (MATH500, lambda row: f"Problem:\n{row['problem']}\n\nSolution:", _math),
    (MBPP, _mbpp_prompt, lambda row: f"{row['code']}\n[DONE]"),
    # There are no gold answers to instructions: this answer follows some of them.
    (IFEVAL, lambda row: str(row["prompt"]), lambda row: "Yes. My answer is yes."),
)
"""For each data set: the end of a row's prompt, by which `GoldModel` finds the row, and the row's answer."""


class _NoNetwork:
    """The attributes of a network that the harness reads, without a network."""

    profile = Profile(mask_id=256, eos_id=257, pad_id=257)
    n_layers = 1
    vocab_size = 258
    max_length = 1 << 20
    lookback = 0
    graphable = False
    device = torch.device("cpu")

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise DapdError("the gold model answers from its files and computes nothing")


class GoldModel(DiffusionLM):
    """A model that looks up its answer to a prompt by the prompt's end."""

    def __init__(self, folder: Path) -> None:
        super().__init__(_NoNetwork(), ByteTokenizer(_NoNetwork.profile), name="gold")
        self.answers: dict[str, str] = {}
        for data, end, answer in ANSWERS:
            for row in data.read(folder).get("test") or data.read(folder)["train"]:
                self.answers[end(row).rstrip()] = answer(row)

    def complete(self, canvases: Sequence[Canvas], **_: Any) -> Iterator[tuple[int, Completion]]:
        for number, canvas in enumerate(canvases):
            yield number, self.answer(canvas.tokens[: canvas.start].tolist())

    def answer(self, prompt: list[int]) -> Completion:
        """The completion of a prompt: where several known ends fit it, that of the longest."""
        text = self.tokenizer.decode(prompt).rstrip()
        ends = [end for end in self.answers if text.endswith(end)]
        if not ends:
            raise DapdError(f"no gold answer to a prompt that ends in {text[-60:]!r}")
        ids = [*self.tokenizer.encode(self.answers[max(ends, key=len)]), self.network.profile.eos_id]
        slots = list(range(len(prompt), len(prompt) + len(ids)))
        trace = Trace([*prompt, *[self.network.profile.mask_id] * len(ids)], slots, 256, 257, start=len(prompt))
        trace.steps.append(Record(1, slots, ids, [1.0] * len(ids), 0, 1, 0.0))
        return Completion(self.tokenizer.decode(ids[:-1]), ids, prompt, "stop", trace)


def check(folder: Path, options: EvalOptions, out: Path, tasks: Sequence[str] = TASKS) -> list[TaskSummary]:
    """Score the gold answers."""
    return evaluate(GoldModel(folder), Setting(TopK()), tasks, options, out)
