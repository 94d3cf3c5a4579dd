"""How much room the answer to a prompt of the lab needs: the default length of a decoding with its model."""

from __future__ import annotations

import random
from functools import cache

from dapd.generation import DEFAULT_MODEL, DEFAULT_NEW_TOKENS, DiffusionLM
from dapd.lab.tasks import TASKS, Task
from dapd.lab.tasks.bundle import Bundle
from dapd.models.source import ANY_TEXT

LAB_NAMES = (DEFAULT_MODEL, ANY_TEXT)


def room_for(lm: DiffusionLM, prompt: object) -> int:
    """Tokens to decode where the user does not say how many: what the lab's task needs, or the common default."""
    needed = room(str(prompt)) if lm.name in LAB_NAMES else None
    return DEFAULT_NEW_TOKENS if needed is None else needed


def room(prompt: str) -> int | None:
    """How many tokens the answer to a prompt needs, if it begins like a prompt of the lab; None: it does not."""
    n_questions = sum(line.startswith("[") for line in prompt.splitlines())
    tasks = _openings().get(_opening(prompt), [])
    return max((_asking(task, n_questions).room for task in tasks), default=None)


@cache
def _openings() -> dict[str, list[Task]]:
    """The tasks by the first two words of their prompts."""
    openings: dict[str, list[Task]] = {}
    for task in TASKS.values():
        openings.setdefault(_opening(task.make(random.Random(0)).prompt), []).append(task)
    return openings


def _opening(prompt: str) -> str:
    return " ".join(prompt.split()[:2])


def _asking(task: Task, n_questions: int) -> Task:
    """The task with that number of questions in a prompt, where it may have as many."""
    return task.of(n_questions) if isinstance(task, Bundle) and task.fewest <= n_questions <= task.most else task
