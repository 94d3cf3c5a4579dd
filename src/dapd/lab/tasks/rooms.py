"""How much room the answer to a prompt of the lab needs: the default length of a decoding with its model."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import takewhile

from dapd.generation import DEFAULT_NEW_TOKENS, DiffusionLM, Prompt
from dapd.lab.tasks import TASKS, Task
from dapd.lab.tasks.bundle import Bundle
from dapd.models.words import WordTokenizer


def room_for(lm: DiffusionLM, prompt: Prompt) -> int:
    """Tokens to decode where the user does not say how many: what the lab's task needs, or the common default."""
    needed = room(_question(prompt)) if is_of_the_lab(lm) else None
    return DEFAULT_NEW_TOKENS if needed is None else needed


def is_of_the_lab(lm: DiffusionLM) -> bool:
    """Whether a model has the lab's closed vocabulary, as the shipped model and any other model of the lab do."""
    return lm.has_tokenizer and isinstance(lm.tokenizer, WordTokenizer)


SAMPLE = 50
"""Prompts of a task from which its frame is read."""


@dataclass(frozen=True)
class Frame:
    """The text that all prompts of a task begin with, and the text that they all end with. The first is empty for word
    problems, which begin with a name."""

    head: str
    tail: str

    @classmethod
    def of(cls, task: Task) -> Frame:
        prompts = [task.make(random.Random(i)).prompt for i in range(SAMPLE)]
        return cls(_shared(prompts), _shared([prompt[::-1] for prompt in prompts])[::-1])

    def holds(self, prompt: str) -> bool:
        return prompt.startswith(self.head) and prompt.endswith(self.tail)


def room(prompt: str) -> int | None:
    """How many tokens the answer to a prompt needs, if it is framed like a prompt of the lab; None: it is not."""
    prompt = prompt.strip()
    n_questions = sum(line.startswith("[") for line in prompt.splitlines())
    rooms = [_asking(task, n_questions).room for task, frame in _frames().items() if frame.holds(prompt)]
    return max(rooms, default=None)


def _question(prompt: Prompt) -> str:
    """What a prompt asks: a text itself, the last message of a conversation; token ids show no task."""
    last = prompt[-1] if isinstance(prompt, Sequence) and prompt else ""
    said = last["content"] if isinstance(last, Mapping) else prompt
    return said if isinstance(said, str) else ""


def _shared(texts: Sequence[str]) -> str:
    """The longest common beginning of all texts, which is that of the first and the last in alphabetical order."""
    pairs = zip(min(texts), max(texts), strict=False)
    return "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


@cache
def _frames() -> dict[Task, Frame]:
    return {task: Frame.of(task) for task in TASKS.values()}


def _asking(task: Task, n_questions: int) -> Task:
    """The task with that number of questions in a prompt if it allows that number, otherwise the task unchanged."""
    return task.of(n_questions) if isinstance(task, Bundle) and task.fewest <= n_questions <= task.most else task
