"""Benchmark data from a folder: which files hold which split, and what every row must have."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dapd.errors import DapdError
from dapd.evaluation.rows import Row, read_rows


@dataclass(frozen=True)
class LocalData:
    """Where a data set lies under the folder that the user names."""

    files: Mapping[str, str]
    """Split -> file, as lm-eval's task files name the splits."""
    columns: Mapping[str, type]
    """The columns that every row must have, and their types."""
    keep: Callable[[Row], bool] = lambda row: True
    """Which rows of the file belong to the split."""
    resources: tuple[str, ...] = ()
    """Other files or folders that the scorer reads."""

    def read(self, folder: Path) -> dict[str, list[Row]]:
        """The rows of every split."""
        for name in self.resources:
            if not (folder / name).exists():
                raise DapdError(f"{folder / name} is missing; the task's scorer needs it")
        return {split: [r for r in self._rows(folder / name) if self.keep(r)] for split, name in self.files.items()}

    def _rows(self, path: Path) -> list[Row]:
        return read_rows(path, self.columns, "--data-dir names the folder above it")


GSM8K = LocalData(
    {"train": "gsm8k/train.jsonl", "test": "gsm8k/test.jsonl"}, dict.fromkeys(("question", "answer"), str)
)
HUMANEVAL = LocalData(
    {"test": "humaneval/HumanEval.jsonl"},
    dict.fromkeys(("task_id", "prompt", "entry_point", "canonical_solution", "test"), str),
)
# The test split of the full set, by the authors' numbering; 1-10 are for examples, the rest for training.
MBPP = LocalData(
    {"test": "mbpp/mbpp.jsonl"},
    {"task_id": int, "text": str, "code": str, "test_list": list},
    keep=lambda row: 11 <= row["task_id"] <= 510,
)
MATH500 = LocalData({"test": "math500/test.jsonl"}, dict.fromkeys(("problem", "solution", "answer"), str))
IFEVAL = LocalData(
    {"train": "ifeval/input_data.jsonl"},
    {"key": int, "prompt": str, "instruction_id_list": list, "kwargs": list},
    resources=("nltk_data/tokenizers/punkt_tab",),
)


@contextlib.contextmanager
def offline(folder: Path | None) -> Iterator[None]:
    """Inside, nothing is fetched, because all data lie in the folder. None: data are fetched from the hubs."""
    if folder is None:
        yield
        return
    wanted = {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "NLTK_DATA": str(folder / "nltk_data"),
    }
    before = {key: os.environ.get(key) for key in wanted}
    os.environ.update(wanted)
    if (nltk := sys.modules.get("nltk")) is not None:  # imported before, it does not read the variable again
        nltk.data.path.insert(0, wanted["NLTK_DATA"])
    try:
        yield
    finally:
        for key, value in before.items():
            os.environ.pop(key) if value is None else os.environ.update({key: value})
