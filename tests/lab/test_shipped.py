"""The model that ships inside: the weights are the recorded ones, it still answers, and it is in the regime."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

import dapd
from dapd.cli.app import app
from dapd.errors import DapdError
from dapd.generation import DEFAULT_MODEL
from dapd.lab.checkpoint import checksums
from dapd.lab.evaluate import Exam
from dapd.lab.gauge import gauge
from dapd.lab.tasks import TASKS, get
from dapd.lab.tokenizer import LabTokenizer
from dapd.models.loading import LAB

RECORD = json.loads((LAB / "training.json").read_text(encoding="utf-8"))

trained = pytest.mark.skipif(
    LabTokenizer.load(LAB).vocabulary != LabTokenizer.build().vocabulary,
    reason="the weights in the tree belong to the tasks of an earlier version",
)
"""What holds for a model of today's tasks alone."""


@pytest.fixture(scope="module")
def lm() -> dapd.DiffusionLM:
    return dapd.load("lab", device="cpu")


def test_weights_match_their_recorded_hash() -> None:
    assert RECORD["sha256"] == checksums(LAB)


def test_it_is_small_enough_and_keeps_its_log_and_seed() -> None:
    assert sum(path.stat().st_size for path in LAB.glob("*.safetensors")) <= 48_100_000
    assert [run["settings"]["seed"] for run in runs()] == [1, 0, 0]
    for log, run in zip(("training", "training.second", "training.first"), runs(), strict=True):
        lines = (LAB / f"{log}.jsonl").read_text(encoding="utf-8").splitlines()
        assert json.loads(lines[-1])["step"] >= run["steps"] - 100


def runs() -> list[dict[str, Any]]:
    """The records of the runs that made the model, the last one first."""
    chain = [RECORD]
    while "started_from" in chain[-1]:
        chain.append(chain[-1]["started_from"])
    return chain


@trained
@pytest.mark.parametrize("task", TASKS)
def test_the_record_says_95_percent(task: str) -> None:
    assert RECORD["scores"][task]["prompts"] >= 200
    assert RECORD["scores"][task]["score"] >= 0.95


@trained
@pytest.mark.parametrize("name", ["shuffle", "latin", "sentence", "scene", "code", "record", "quiz-1"])
def test_it_still_answers(lm: dapd.DiffusionLM, name: str) -> None:
    """Prompts that were not seen in training, other ones than those of the record; nearly step by step, but sooner."""
    task, n = get(name), 4
    asked = task.examples(n, seed=1)
    done = lm.generate_batch(
        [[{"role": "user", "content": example.prompt}] for example in asked],
        strategy=dapd.strategy("eb-sampler", gamma=0.01),
        max_new_tokens=task.room,
        block_length=16 if name == "quiz-1" else 32,
        early_stop=True,
    )
    assert sum(task.score(example, one.text) for example, one in zip(asked, done, strict=True)) >= n - 1


@trained
def test_it_is_in_the_regime(lm: dapd.DiffusionLM) -> None:
    """Unsure of its text at first, and a threshold decoder takes few tokens at a time, as with models of real text."""
    regime = gauge(lm.network, LabTokenizer.load(LAB), get("quiz-5"), Exam(1, seed=1))
    assert regime.complaints() == []


@trained
def test_it_is_the_default_and_answers_five_questions_with_dapd(lm: dapd.DiffusionLM) -> None:
    assert DEFAULT_MODEL == "lab"
    task = get("quiz-5")
    (example,) = task.examples(1)
    done = lm.generate([{"role": "user", "content": example.prompt}], strategy="dapd-direct", max_new_tokens=task.room)
    assert isinstance(done, dapd.Completion)
    assert task.score(example, done.text) >= 0.6
    assert done.nfe < 60


def test_a_word_it_does_not_know_is_named(lm: dapd.DiffusionLM) -> None:
    with pytest.raises(DapdError, match=r"(?s)philosophy.*dapd lab prompts"):
        lm.generate([{"role": "user", "content": "What is philosophy?"}])


def test_any_text_is_read_without_the_words_it_does_not_know() -> None:
    lenient = dapd.load("lab:any-text", device="cpu").tokenizer
    strict = dapd.load("lab", device="cpu").tokenizer
    assert lenient.encode("What is my philosophy of the day?") == strict.encode("What is of the day?")
    asked = [{"role": "user", "content": "What is xyzzy plus 3?"}]
    assert lenient.chat(asked) == strict.chat([{"role": "user", "content": "What is plus 3?"}])


QUESTION = [{"role": "user", "content": "Answer this question in your own words.\n[1] What is 24 plus 35?"}]


@trained
def test_a_template_may_answer_a_prompt(lm: dapd.DiffusionLM) -> None:
    done = lm.infill("[1] First, 24 plus 30 is [MASK*2]. Then, [MASK*2] plus 5 is [MASK*2].", prompt=QUESTION)
    assert done.text == "[1] First, 24 plus 30 is 54. Then, 54 plus 5 is 59."


@trained
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
