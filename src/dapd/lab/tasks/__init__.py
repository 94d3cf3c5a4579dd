"""The tasks of the lab: everything is made by generators, scored exactly, and split by the text of the prompt."""

from __future__ import annotations

from dapd.errors import unknown
from dapd.lab.tasks.base import Edge, Example, Split, Task, pieces
from dapd.lab.tasks.bundle import Bundle, Loose, Tied
from dapd.lab.tasks.grids import GridTask
from dapd.lab.tasks.lists import OPERATIONS, ListTask
from dapd.lab.tasks.sentences import Sentences
from dapd.lab.tasks.stories import Stories

TASKS: dict[str, Task] = {
    **{name: ListTask(name) for name in OPERATIONS},
    "latin": GridTask("latin", "Fill the Latin square:", boxes=False, fewest=2, most=8),
    "sudoku": GridTask("sudoku", "Fill the sudoku:", boxes=True, fewest=4, most=10),
    "bundle": Bundle(),
    "tied": Tied(),
    "loose": Loose(),
    "story": Stories(),
    "sentence": Sentences(),
}


def get(name: str) -> Task:
    """The task of that name; `bundle-5` is a bundle with five questions in every prompt."""
    if name in TASKS:
        return TASKS[name]
    stem, _, number = name.rpartition("-")
    task = TASKS.get(stem)
    if isinstance(task, Bundle) and number.isdecimal():
        return task.of(int(number))
    raise unknown("task", name, [*TASKS, "bundle-1 ... bundle-8 (1 to 8 questions)"])


__all__ = ["TASKS", "Edge", "Example", "Split", "Task", "get", "pieces"]
