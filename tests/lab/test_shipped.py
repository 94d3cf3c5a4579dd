"""The model that ships inside: the weights are the recorded ones, and it still answers."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import dapd
from dapd.cli.app import app
from dapd.errors import DapdError
from dapd.generation import DEFAULT_MODEL
from dapd.lab.checkpoint import checksums
from dapd.lab.evaluate import evaluate
from dapd.lab.settings import LEFT_OUT
from dapd.lab.tasks import TASKS, get
from dapd.lab.tokenizer import LabTokenizer
from dapd.models.loading import LAB

RECORD = json.loads((LAB / "training.json").read_text(encoding="utf-8"))
KEPT = [name for name in TASKS if name not in LEFT_OUT]


@pytest.fixture(scope="module")
def lm() -> dapd.DiffusionLM:
    return dapd.load("lab", device="cpu")


def test_weights_match_their_recorded_hash() -> None:
    assert RECORD["sha256"] == checksums(LAB)
    assert len(RECORD["sha256"]) == 2


def test_it_is_small_enough_and_keeps_its_log_and_seed() -> None:
    assert sum(path.stat().st_size for path in LAB.iterdir()) < 32 * 2**20
    assert RECORD["settings"]["seed"] == 0
    assert (LAB / "training.jsonl").read_text(encoding="utf-8").count("\n") > 10


def test_the_record_says_98_percent_for_every_task_that_is_kept() -> None:
    assert sorted(RECORD["scores"]) == sorted(KEPT) == sorted(RECORD["settings"]["tasks"])
    assert min(score["score"] for score in RECORD["scores"].values()) >= 0.98


def test_its_tokenizer_is_the_one_that_the_tasks_need() -> None:
    assert LabTokenizer.load(LAB).vocabulary == LabTokenizer.build().vocabulary


@pytest.mark.parametrize(
    ("task", "n"), [("copy", 6), ("shuffle", 6), ("latin", 6), ("sentence", 6), ("story", 3), ("bundle-1", 6)]
)
def test_it_still_scores(lm: dapd.DiffusionLM, task: str, n: int) -> None:
    """Step by step on prompts that were not seen in training, other ones than those of the record."""
    (row,) = evaluate(lm.network, LabTokenizer.load(LAB), [get(task)], n, seed=1)
    assert row.score >= (n - 1) / n


def test_it_is_the_default_and_answers_five_questions_with_dapd(lm: dapd.DiffusionLM) -> None:
    assert DEFAULT_MODEL == "lab"
    task = get("bundle-5")
    (example,) = task.examples(1)
    done = lm.generate([{"role": "user", "content": example.prompt}], strategy="dapd-direct", max_new_tokens=task.room)
    assert isinstance(done, dapd.Completion)
    assert task.score(example, done.text) >= 0.8
    assert done.nfe < 40


def test_a_word_it_does_not_know_is_named(lm: dapd.DiffusionLM) -> None:
    with pytest.raises(DapdError, match=r"(?s)philosophy.*dapd lab prompts"):
        lm.generate([{"role": "user", "content": "What is philosophy?"}])


def test_any_text_is_read_without_the_words_it_does_not_know() -> None:
    lenient = dapd.load("lab:any-text", device="cpu").tokenizer
    strict = dapd.load("lab", device="cpu").tokenizer
    assert lenient.encode("What is my philosophy of the day?") == strict.encode("What is of the day?")
    asked = [{"role": "user", "content": "What is xyzzy plus 3?"}]
    assert lenient.chat(asked) == strict.chat([{"role": "user", "content": "What is plus 3?"}])


QUESTION = [{"role": "user", "content": "Answer each question.\n[1] What is 24 plus 35?"}]


def test_a_template_may_answer_a_prompt(lm: dapd.DiffusionLM) -> None:
    done = lm.infill("[1] First, [MASK*5] is [MASK*2]. [MASK*19]", prompt=QUESTION)
    assert done.text == "[1] First, 24 plus 30 is 54. Then, 54 plus 5 is 59. Therefore, the answer is 59."


def test_the_same_by_command() -> None:
    arguments = [
        "generate",
        QUESTION[0]["content"],
        "--template",
        "[1] First, 24 plus 30 is [MASK*2].",
        "--device",
        "cpu",
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0
    assert result.stdout == "[1] First, 24 plus 30 is 54.\n"
