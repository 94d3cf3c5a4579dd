"""The tasks of the lab: everything is made by generators, scored exactly, and split by the text of the prompt."""

from __future__ import annotations

from dapd.errors import unknown
from dapd.lab.tasks.base import Edge, Example, Split, Task, pieces
from dapd.lab.tasks.bundle import Bundle
from dapd.lab.tasks.functions import Functions
from dapd.lab.tasks.grids import GridTask
from dapd.lab.tasks.lists import Shuffle
from dapd.lab.tasks.quiz import Quiz
from dapd.lab.tasks.records import Records
from dapd.lab.tasks.scenes import Scenes
from dapd.lab.tasks.sentences import Sentences
from dapd.lab.tasks.stories import Stories
from dapd.lab.tasks.tied import Tied

TASKS: dict[str, Task] = {
    "quiz": Quiz(),
    "story": Stories(),
    "code": Functions(),
    "record": Records(),
    "scene": Scenes(),
    "sentence": Sentences(),
    "tied": Tied(),
    "shuffle": Shuffle(),
    "latin": GridTask("latin", "Fill the Latin square:", boxes=False, fewest=2, most=8),
    "sudoku": GridTask("sudoku", "Fill the sudoku:", boxes=True, fewest=4, most=10),
}


def get(name: str) -> Task:
    """The task of that name; `quiz-5` is a quiz with five questions in every prompt."""
    if name in TASKS:
        return TASKS[name]
    stem, _, number = name.rpartition("-")
    task = TASKS.get(stem)
    if isinstance(task, Bundle) and number.isdecimal():
        return task.of(int(number))
    raise unknown("task", name, [*TASKS, "quiz-1 ... quiz-8 (1 to 8 questions)"])


__all__ = ["TASKS", "Edge", "Example", "Split", "Task", "get", "pieces"]
