"""4x4 grids with gaps: Latin squares and small sudokus. Every grid that keeps the clues and the rules is right."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations

from dapd.lab.tasks.base import Edge, Example, Task, clique

SIDE = 4
Grid = tuple[int, ...]
"""The sixteen cells, row by row."""


@cache
def units(boxes: bool) -> tuple[tuple[int, ...], ...]:
    """The sets of cells that hold each digit once."""
    rows = [tuple(range(SIDE * r, SIDE * r + SIDE)) for r in range(SIDE)]
    columns = [tuple(range(c, SIDE * SIDE, SIDE)) for c in range(SIDE)]
    corners = [(0, 1, 4, 5), (2, 3, 6, 7), (8, 9, 12, 13), (10, 11, 14, 15)]
    return (*rows, *columns, *(corners if boxes else ()))


@cache
def grids(boxes: bool) -> tuple[Grid, ...]:
    """All full grids: 576 Latin squares, 288 of them sudokus."""
    lines = list(permutations(range(1, SIDE + 1)))
    grids: list[Grid] = [()]
    for _ in range(SIDE):
        grids = [
            grid + line
            for grid in grids
            for line in lines
            if all(line[c] != grid[k] for c in range(SIDE) for k in range(c, len(grid), SIDE))
        ]
    return tuple(grid for grid in grids if _valid(grid, boxes))


def _valid(grid: Grid, boxes: bool) -> bool:
    return all({grid[cell] for cell in unit} == set(range(1, SIDE + 1)) for unit in units(boxes))


def _text(cells: Sequence[str]) -> str:
    return "\n".join(" ".join(cells[SIDE * r : SIDE * r + SIDE]) for r in range(SIDE))


@dataclass(frozen=True)
class GridTask(Task):
    """Fill the gaps of a grid."""

    name: str
    ask: str
    boxes: bool
    """Whether the four corner boxes hold each digit once, too."""
    fewest: int
    """The smallest number of clues."""
    most: int

    room = 32
    scored = "the grid keeps the clues and the rules"
    graph = "cells without a clue that share a row, a column or (sudoku) a box"

    def draw(self, rng: random.Random) -> Example:
        grid = rng.choice(grids(self.boxes))
        clues = sorted(rng.sample(range(SIDE * SIDE), rng.randint(self.fewest, self.most)))
        shown = [str(digit) if cell in clues else "_" for cell, digit in enumerate(grid)]
        meta = {"clues": {cell: grid[cell] for cell in clues}}
        return Example(self.name, f"{self.ask}\n{_text(shown)}", _text([str(digit) for digit in grid]), meta)

    def score(self, example: Example, text: str) -> float:
        lines = [line.split(" ") for line in text.split("\n")]
        cells = [cell for line in lines for cell in line]
        if [len(line) for line in lines] != [SIDE] * SIDE or not all(cell in ("1", "2", "3", "4") for cell in cells):
            return 0.0
        grid = tuple(map(int, cells))
        kept = all(grid[int(cell)] == digit for cell, digit in example.meta["clues"].items())
        return float(kept and _valid(grid, self.boxes))

    def edges(self, example: Example, tokens: Sequence[str]) -> set[Edge]:
        places = [i for i, token in enumerate(tokens) if token.strip().isdigit()]
        free = {cell for cell in range(len(places)) if cell not in example.meta["clues"]}
        pairs = {pair for unit in units(self.boxes) for pair in clique(unit) if free.issuperset(pair)}
        return {(places[a], places[b]) for a, b in pairs}

    def words(self) -> Iterable[str]:
        return (self.ask, "1 2 3 4 _")
