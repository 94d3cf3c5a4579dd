"""New instances of ParallelBench's list and grid tasks, in the format of its files, with prompts of our own."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dapd.errors import DapdError, missing_extra
from dapd.evaluation.parallelbench.data import OPERATIONS
from dapd.evaluation.runs import SETUP, Run
from dapd.io.files import make_folder, write_text
from dapd.lab.tasks.grids import SIDE, Grid, grids

FIRST = (
    "Ada Bruno Clara Dario Elena Farid Greta Hugo Ines Jonas Kira Leon Mara Nils Olga Pablo Quinn Rosa Stefan Tilda "
    "Umar Vera Wim Xenia Yusuf Zora"
)
LAST = (
    "Abel Brandt Castell Duarte Engel Faber Gruber Horvat Ibsen Jansen Keller Lindt Moreau Novak Okafor Petrov Quist "
    "Rossi Sato Tamm Ueda Vogel Winter Xu Yilmaz Zeman"
)
NAMES = tuple(f"{first} {last}" for first in FIRST.split() for last in LAST.split())
SYMBOLS = "ABCDEFGHJKLMNPRSTUVWXYZ23456789"
BLANKS = 4

ASK = {
    "copy": "Write this list down again, exactly as it is: {context}\nAnswer with the list alone.",
    "reverse": "Write this list from its end to its beginning: {context}\nAnswer with the list alone.",
    "sort": "Sort this list by its entries' letters: {context}\nAnswer with the list alone.",
    "shuffle": "Put this list into another, random order: {context}\nAnswer with the list alone.",
    "insert_index": 'Insert "{word}" at index {index}, counted from 0: {context}\nAnswer with the list alone.',
    "insert_random": 'Insert "{word}" at some random place: {context}\nAnswer with the list alone.',
    "remove_index": "Take out the entry at index {index}, counted from 0: {context}\nAnswer with the list alone.",
    "remove_random": "Take out one entry, whichever you like: {context}\nAnswer with the list alone.",
    "replace_index": 'Put "{word}" in place of the entry at index {index}, counted from 0: {context}\n'
    "Answer with the list alone.",
    "replace_random": 'Put "{word}" in place of one entry, whichever you like: {context}\nAnswer with the list alone.',
    "latin_square_n4": "Write a Latin square with {size} rows of the symbols {symbols}. Answer with CSV alone.",
    "sudoku_n4_12": "Replace every 0 so that each row, each column and each quarter of the grid holds 1, 2, 3 and 4."
    "\n\n{sudoku}\n\nAnswer with the grid alone.",
}
METRIC = {
    "shuffle": "list_shuffle_score",
    "insert_random": "list_random_insert_score",
    "remove_random": "list_random_remove_score",
    "replace_random": "list_random_replace_score",
    "latin_square_n4": "latin_square_score",
    "sudoku_n4_12": "sudoku_score",
}


@dataclass(frozen=True)
class Batch:
    """How many samples of each task to make, how large, and from which seed."""

    samples: int = 100
    size: int = 15
    """How many entries each list has."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise DapdError(f"samples is {self.samples}; it must be at least 1")
        if not 2 <= self.size <= len(NAMES) - 1:
            raise DapdError(f"size is {self.size}; it must lie between 2 and {len(NAMES) - 1}")


def make(folder: Path, batch: Batch) -> list[Path]:
    """Write the files of both groups into a folder. A folder that a killed run of the same batch left is completed."""
    try:
        import yaml
    except ImportError:
        raise missing_extra("pyyaml", "eval", "writing task files") from None
    if folder.is_dir() and any(folder.iterdir()) and not (folder / SETUP).is_file():
        raise DapdError(f"{folder} is not empty; choose another folder with --out")
    Run.open(folder, {"bench": "parallelbench instances", **asdict(batch)}, "set of instances", take_over=False)
    paths = []
    for group, tasks in (("waiting_line_n15", OPERATIONS), ("puzzle", ("latin_square_n4", "sudoku_n4_12"))):
        make_folder(folder / group)
        config = {
            f"{group}/{task}": {"prompt": ASK[task], "metric": METRIC.get(task, "list_match_score"), "seed": batch.seed}
            for task in tasks
        }
        write_text(folder / group / "task_config.yaml", yaml.safe_dump(config))
        for task in tasks:
            path = folder / group / f"{task}.jsonl"
            if not path.is_file():  # files are whole or not there
                write_text(path, "".join(json.dumps(row) + "\n" for row in instances(task, batch)))
            paths.append(path)
    return paths


def instances(task: str, batch: Batch) -> list[dict[str, Any]]:
    """Samples of a task, each with one solved example: the same ones for the same seed."""
    rng = random.Random(f"{task}/{batch.seed}")
    draw: dict[str, Callable[[], dict[str, Any]]] = {
        "latin_square_n4": lambda: latin_square(rng),
        "sudoku_n4_12": lambda: sudoku(rng),
    }
    one = draw.get(task, lambda: listing(task, batch.size, rng))
    rows = []
    for _ in range(batch.samples):
        example = one()
        row = one()
        rows.append({**row, "input": {**row["input"], "icl_examples": [example]}})
    return rows


def listing(operation: str, size: int, rng: random.Random) -> dict[str, Any]:
    """A list operation on names that are all different."""
    *names, new = rng.sample(NAMES, size + 1)
    verb, _, where = operation.partition("_")
    index = rng.randrange(size + (verb == "insert"))
    done = _apply(verb, names, index, new, rng)
    fields: dict[str, Any] = {"context": json.dumps(names)}
    if verb in ("insert", "replace"):
        fields["word"] = new
    if where == "index":
        fields["index"] = index
    answer: Any = json.dumps(done)
    if where == "random" or verb == "shuffle":
        answer = {"input": names, "example": answer} | ({"word": new} if "word" in fields else {})
    return {"input": fields, "answer": answer, "metadata": {"length": size}}


def _apply(verb: str, names: list[str], index: int, new: str, rng: random.Random) -> list[str]:
    match verb:
        case "copy":
            return list(names)
        case "reverse":
            return names[::-1]
        case "sort":
            return sorted(names)
        case "insert":
            return [*names[:index], new, *names[index:]]
        case "remove":
            return names[:index] + names[index + 1 :]
        case "replace":
            return [*names[:index], new, *names[index + 1 :]]
        case "shuffle":
            order = names
            while order == names:
                order = rng.sample(names, len(names))
            return order
    raise DapdError(f"no such list operation: {verb}")


def latin_square(rng: random.Random) -> dict[str, Any]:
    """Any of the 576 squares, on four symbols."""
    symbols = rng.sample(SYMBOLS, SIDE)
    square = rng.choice(grids(False))
    lines = [",".join(symbols[cell - 1] for cell in square[SIDE * r : SIDE * r + SIDE]) for r in range(SIDE)]
    return {
        "input": {"size": SIDE, "symbols": f"[{', '.join(symbols)}]"},
        "answer": {"symbols": symbols, "example": "\n".join(lines)},
        "metadata": {"length": SIDE},
    }


def sudoku(rng: random.Random) -> dict[str, Any]:
    """A grid with four blanks that can be filled in one way only."""
    while True:
        full = rng.choice(grids(True))
        blank = set(rng.sample(range(SIDE * SIDE), BLANKS))
        if sum(all(grid[i] == full[i] for i in range(SIDE * SIDE) if i not in blank) for grid in grids(True)) == 1:
            break
    shown = tuple(0 if i in blank else cell for i, cell in enumerate(full))
    clues = SIDE * SIDE - BLANKS
    return {"input": {"sudoku": _digits(shown)}, "answer": _digits(full), "metadata": {"length": clues}}


def _digits(grid: Grid) -> str:
    return "\n".join("".join(map(str, grid[SIDE * r : SIDE * r + SIDE])) for r in range(SIDE))
