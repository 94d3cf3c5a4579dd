"""The multi-question analysis: filter, bundles, prompt, scorer, and what is read off a decoding."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import dapd
from dapd.errors import DapdError
from dapd.evaluation.decoding import Plan
from dapd.evaluation.multi_question import (
    METHODS,
    SWEEPS,
    Question,
    answer_of,
    as_trace,
    ask,
    behaviour,
    bundles,
    evaluate,
    is_simple,
    read_questions,
    score,
    segments,
    summarise,
)
from dapd.evaluation.multi_question.analysis import GRID, mark_starts
from dapd.trace import read_traces

TRIVIAQA = Path(__file__).parents[3] / "shared" / "data" / "triviaqa"
PAPER = Path(__file__).parents[3] / "shared" / "paper.tex"


def quiz(n: int) -> list[Question]:
    return [Question(str(i), f"Which thing is number {i}?", (f"thing {i}",)) for i in range(n)]


@pytest.fixture(scope="module")
def model() -> dapd.DiffusionLM:
    """Room for the long prompt."""
    from dapd.models import SHAPES

    shape = dataclasses.replace(SHAPES["tiny-llada"], max_length=4096, n_layers=2)
    network = dapd.random(shape, sharpness=8.0).network
    return dapd.DiffusionLM(network, dapd.load("random:tiny-llada", device="cpu").tokenizer, name="long")


@pytest.mark.parametrize(
    "question",
    [
        "Who wrote, produced and directed epic film, Avatar?",
        "In which year did the war end?",
        "What is the name of the river",
        "which is the largest?",
        "Who said 'Enough.'?",
        "x" * 119 + "?",
    ],
)
def test_simple_questions_stay(question: str) -> None:
    assert is_simple(question)


@pytest.mark.parametrize(
    "question",
    [
        "Name the river.",
        "Whatever floats your boat",
        "Why is the sky blue?",
        "How many legs has a spider?",
        "Which of the following is a fruit?",
        "What best describes a whale?",
        "Who is MOST LIKELY to win?",
        "He wrote Emma. Who was he?",
        "It opened in 1999! What is it?",
        "x" * 120 + "?",
    ],
)
def test_other_questions_go(question: str) -> None:
    assert not is_simple(question)


@pytest.mark.skipif(not TRIVIAQA.is_dir(), reason="TriviaQA is not at ../shared/data")
def test_the_filter_on_triviaqa() -> None:
    found = read_questions(TRIVIAQA)
    assert len(found) == 9122
    chosen = bundles(found)
    assert len({q.key for b in chosen for q in b.questions}) == 2500


def test_bundles_follow_from_the_seed() -> None:
    questions = quiz(60)
    assert bundles(questions, 10, 3) == bundles(questions, 10, 3)
    assert bundles(questions, 10, 3) != bundles(questions, 10, 4)
    assert bundles(questions, 10, 3)[:4] == bundles(questions, 4, 3)
    with pytest.raises(DapdError, match="60 questions make 1 to 12"):
        bundles(questions, 13)


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(DapdError, match="cannot read"):
        read_questions(tmp_path)
    file = tmp_path / "triviaqa_dpr_test.jsonl"
    file.write_text('{"question": "Who?", "answer": "me"}\n')
    with pytest.raises(DapdError, match="no column 'aliases'"):
        read_questions(tmp_path)
    file.write_text('{"question": "Who?", "aliases": ["me"]}\n')
    assert [q.aliases for q in read_questions(tmp_path)] == [("me",)]


@pytest.mark.skipif(not PAPER.is_file(), reason="the paper's source is not at ../shared")
def test_the_prompt_is_the_papers() -> None:
    text = PAPER.read_text(encoding="utf-8")
    start = text.index("Please answer the following 5 independent questions.")
    template = text[start : text.index("\\end{verbatim}", start)].strip()
    for number, question in enumerate(quiz(5), 1):
        template = template.replace(f"{{Question {number}}}", question.text)
    assert ask(quiz(5)) == template


def test_segments() -> None:
    assert segments("intro [1] a [2] b [3] c", 3) == [" a ", " b ", " c"]
    assert segments("[1] a [3] c", 3) == [" a ", "", " c"]
    assert segments("[1] see [2] b", 2) == [" see ", " b"]
    assert segments("[2] b [1] a", 2) == [" a", ""]
    assert segments("no marks", 2) == ["", ""]


def test_answers() -> None:
    assert answer_of("It is red. Therefore, the answer is Red.") == " Red."
    assert answer_of("THEREFORE, THE ANSWER IS red") == " red"
    assert answer_of("The answer is blue. Therefore, the answer is red") == " red"
    assert answer_of("So the answer is blue.") == " blue."
    assert answer_of("It is blue.") == "It is blue."
    # İ is two characters in lower case: places must be those of the text as it stands.
    assert answer_of("İİİ the answer is red") == " red"


def test_verdicts() -> None:
    questions = [
        Question("a", "?", ("Paris", "City of Light")),
        Question("b", "?", ("Rome",)),
        Question("c", "?", (" ",)),
    ]
    text = (
        "[1] It was Rome. Therefore, the answer is the city of LIGHT. [2] Rome. Therefore, the answer is Paris. [3] ?"
    )
    assert score(text, questions) == [True, False, False]
    assert score("[1] I believe it is paris [2] Romeo [3]", questions) == [True, True, False]
    assert score("Paris, Rome", questions) == [False, False, False]


def test_settings_lie_within_the_papers_sweeps() -> None:
    assert [len(SWEEPS[name]) for name in ("fast-dllm", "klass", "eb-sampler")] == [4, 20, 4]
    assert all(METHODS[name] in SWEEPS[name] for name in SWEEPS)
    assert all(setting.n_blocks == 1 for setting in METHODS.values())
    assert (METHODS["dapd-staged"].strategy.tau_min, METHODS["dapd-staged"].strategy.tau_max) == (0.01, 0.05)  # type: ignore[attr-defined]


def test_where_marks_begin(model: dapd.DiffusionLM) -> None:
    ids = model.encode("ab [1] cd [2]")
    assert mark_starts(model, ids, 3) == [3, 10, None]


def record(order: list[int], pieces: list[int], starts: list[int | None]) -> dict[str, object]:
    return {"order": order, "segments": pieces, "starts": starts, "nfe": len(pieces)}


def test_behaviour_of_two_samples() -> None:
    """Left to right in four steps, and from both ends in two."""
    found = behaviour([record([1, 2, 3, 4], [1, 1, 1, 1], [0, None]), record([1, 2, 2, 1], [2, 1], [2, None])])
    half, quarter = found.unmasked[GRID // 2 - 1], found.unmasked[GRID // 4]
    assert half == [1.0, 0.5, 0.0, 0.5]
    assert quarter == [0.5, 0.0, 0.0, 0.0]
    assert found.unmasked[-1] == [1.0] * 4
    assert found.when == [0.375, 0.75, 0.875, 0.75]
    assert (found.segments[0], found.segments[1], found.segments[GRID // 2], found.segments[GRID]) == (0, 1.5, 1.5, 1)
    assert found.segments_by_step == [1.5, 1.0, 1.0, 1.0]
    assert found.starts == [1.0, None]


def test_a_run_from_prompt_to_table(model: dapd.DiffusionLM, tmp_path: Path) -> None:
    asked = bundles(quiz(20), 3)
    plan = Plan(METHODS["dapd-staged"], length=24)
    records = evaluate(model, asked, plan, tmp_path)
    result = summarise(asked, records, plan, tmp_path)
    assert result.n_questions == 15
    assert result.steps == sum(r["nfe"] for r in records) / 3
    for one in records:
        assert sorted(set(one["order"])) == list(range(1, one["nfe"] + 1))
        assert one["segments"][-1] == 1
    # The whole trajectory of the first ones is kept, and the picture's trace says the same without the tokens.
    whole = read_traces(tmp_path / "traces" / "0.jsonl")[0]
    bare = as_trace(records[0], result.strategy)
    assert [len(r.positions) for r in whole.steps] == [len(r.positions) for r in bare.steps]
    assert [(r.masks_left, r.segments) for r in whole.steps] == [(r.masks_left, r.segments) for r in bare.steps]
    assert bare.complete
    assert not (tmp_path / "traces" / "2.jsonl").exists()
    json.dumps(dataclasses.asdict(result))


def test_a_changed_question_is_asked_anew(model: dapd.DiffusionLM, tmp_path: Path) -> None:
    plan = Plan(METHODS["fast-dllm"], length=8)
    evaluate(model, bundles(quiz(5), 1), plan, tmp_path)
    other = [dataclasses.replace(q, text=q.text.replace("thing", "item")) for q in quiz(5)]
    evaluate(model, bundles(other, 1), plan, tmp_path)
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 2
