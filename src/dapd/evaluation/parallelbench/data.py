"""ParallelBench's released files: tasks, samples, prompts. They are read from a folder of the user and never shipped.

A folder holds one folder per group with `task_config.yaml` (prompt, metric) and one JSONL file per task, whose lines
have `input`, `answer` and `metadata`. One-shot examples stand in `input.icl_examples`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapd.errors import DapdError, missing_extra, unknown
from dapd.evaluation.rows import read_rows
from dapd.models.chat import Messages


@dataclass(frozen=True)
class Group:
    """Tasks that the DAPD paper averages into one column."""

    title: str
    folder: str
    length: int
    """Number of new tokens, as in the DAPD paper."""
    tasks: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.folder}/{task}" for task in self.tasks)


OPERATIONS = (
    "copy",
    "insert_index",
    "insert_random",
    "remove_index",
    "remove_random",
    "replace_index",
    "replace_random",
    "reverse",
    "shuffle",
    "sort",
)
GROUPS = {
    "words": Group(
        "Words to Sentence", "words_to_sentence", 64, ("easy", "easy_n1", "easy_n3", "easy_n4", "easy_n5", "easy_n6")
    ),
    "paraphrase": Group("Paraphrase", "paraphrase_summarize", 128, ("chatgpt-paraphrases", "samsum")),
    "waiting_line": Group("Waiting Line", "waiting_line_n15", 128, OPERATIONS),
    "puzzle": Group("Puzzle", "puzzle", 64, ("latin_square_n4", "sudoku_n4_12")),
}
"""The DAPD paper's columns, in its order."""

LENGTHS = {group.folder: group.length for group in GROUPS.values()} | {"waiting_line": 32}

Answer = str | dict[str, Any]


@dataclass(frozen=True)
class Sample:
    """One line of a task's file."""

    key: str
    input: Mapping[str, Any]
    answer: Answer


@dataclass(frozen=True)
class BenchTask:
    """A task with its samples."""

    name: str
    """group/task, as in the released files."""
    template: str
    metric: str
    samples: tuple[Sample, ...]

    @property
    def length(self) -> int:
        return LENGTHS.get(self.name.split("/")[0], 64)

    def prompt(self, inputs: Mapping[str, Any]) -> str:
        try:
            return self.template.format(**inputs)
        except (KeyError, IndexError) as error:
            raise DapdError(f"{self.name}: the prompt asks for {error}, which the samples' input lacks") from None

    def messages(self, sample: Sample) -> Messages:
        """The conversation: each example a turn of the user and one of the model, then the question."""
        turns: list[dict[str, str]] = []
        for example in sample.input.get("icl_examples", []):
            turns.append({"role": "user", "content": self.prompt(example["input"])})
            turns.append({"role": "assistant", "content": gold(example["answer"])})
        return [*turns, {"role": "user", "content": self.prompt(sample.input)}]


def gold(answer: Answer) -> str:
    """An answer that is right, as text."""
    if isinstance(answer, str):
        return answer
    for field in ("example", "summary"):
        if field in answer:
            return str(answer[field])
    if "examples" in answer:  # a list that was written down as Python writes it
        return str(ast.literal_eval(answer["examples"])[0])
    if "words" in answer:  # some of the word tasks come without a sentence: the words alone include themselves
        return " ".join(answer["words"])
    return str(answer["text"])


def load_task(folder: Path, name: str) -> BenchTask:
    """One task of a folder of released files."""
    group, _, task = name.partition("/")
    if not folder.is_dir():
        raise DapdError(
            f"ParallelBench's files are not at {folder}: its licence forbids shipping them; clone "
            "github.com/furiosa-ai/ParallelBench and name the folder that holds waiting_line_n15, puzzle, ..."
        )
    configs = _configs(folder / group / "task_config.yaml")
    if name not in configs:
        raise unknown("ParallelBench task", name, configs)
    config = configs[name]
    for column in ("prompt", "metric"):
        if not isinstance(config.get(column), str):
            raise DapdError(f"{folder / group / 'task_config.yaml'}: {name} has no {column!r}")
    samples = _samples(folder / group / f"{task}.jsonl")
    return BenchTask(name, config["prompt"].replace("\\n", "\n"), config["metric"], samples)


def _configs(path: Path) -> dict[str, Any]:
    try:
        import yaml
    except ImportError:
        raise missing_extra("pyyaml", "eval", "reading ParallelBench's task files") from None
    try:
        configs = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DapdError(f"cannot read {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DapdError(f"{path} is not YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(configs, dict) or not all(isinstance(value, dict) for value in configs.values()):
        raise DapdError(f"{path} does not describe tasks: it must map names to settings")
    return configs


def _samples(path: Path) -> tuple[Sample, ...]:
    rows = read_rows(path, {"input": dict, "answer": object})
    return tuple(Sample(f"{path.stem}/{number}", row["input"], row["answer"]) for number, row in enumerate(rows))
