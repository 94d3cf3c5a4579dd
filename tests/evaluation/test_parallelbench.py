"""ParallelBench: files, prompts, scorers and new instances. The released files are used where they are at hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import dapd
from dapd.cli.app import app
from dapd.errors import DapdError
from dapd.evaluation.decoding import Plan
from dapd.evaluation.parallelbench import GROUPS, Batch, Tools, evaluate, gold, gold_scores, load_task, make, summarise
from dapd.evaluation.parallelbench.make import instances
from dapd.evaluation.parallelbench.scoring import EXACT, parse_list, parse_list_strictly, score
from dapd.evaluation.parallelbench.text import bleu, rouge_l
from dapd.settings import Setting, strategy

SHARED = Path(__file__).parents[3] / "shared" / "data" / "parallelbench"
RELEASED = pytest.mark.skipif(not SHARED.is_dir(), reason="ParallelBench's released files are not at ../shared/data")
TASKS = [name for group in GROUPS.values() for name in group.names]
BARE = Tools()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("bench") / "made"
    make(where, Batch(samples=4, size=3, seed=1))
    return where


@pytest.fixture(scope="module")
def model() -> dapd.DiffusionLM:
    return dapd.load("random:tiny-llada", device="cpu")


def total(metric: str, text: str, answer: object) -> float | None:
    return score(metric, text, answer, BARE)["score"]  # type: ignore[arg-type]


# --- the released files ---


@RELEASED
@pytest.mark.parametrize("name", TASKS)
def test_released_answers_score_100(name: str) -> None:
    task = load_task(SHARED, name)
    parts = gold_scores(task, BARE)
    assert len(task.samples) == (108 if "sudoku" in name else 100)
    if task.metric in EXACT:
        assert set(parts.values()) == {100.0}
    elif name.startswith("words"):
        assert parts == {"inclusion": 100.0, "grammar": None, "score": None}
    elif name.endswith("samsum"):
        assert parts == {"rouge_l": 100.0, "grammar": None, "score": None}
    else:
        assert parts["score"] is None
        assert 50 < (parts["novelty"] or 0) < 100


@RELEASED
@pytest.mark.parametrize("name", [n for n in TASKS if n.startswith(("waiting", "puzzle"))])
def test_the_next_samples_answer_is_wrong_here(name: str) -> None:
    """A scorer that says yes to everything would pass the test above."""
    task = load_task(SHARED, name)
    shifted = [*task.samples[1:], task.samples[0]]
    right = [
        total(task.metric, gold(other.answer), sample.answer)
        for sample, other in zip(task.samples, shifted, strict=True)
    ]
    assert sum(value or 0 for value in right) == 0


@RELEASED
def test_prompts_are_turns() -> None:
    task = load_task(SHARED, "waiting_line_n15/replace_random")
    sample = task.samples[0]
    turns = task.messages(sample)
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
    assert sample.input["context"] in turns[2]["content"]
    assert turns[2]["content"].count(sample.input["word"]) == 2
    assert turns[1]["content"].startswith('["')
    assert "{" not in turns[0]["content"]
    zero_shot = load_task(SHARED, "words_to_sentence/easy")
    assert [turn["role"] for turn in zero_shot.messages(zero_shot.samples[0])] == ["user"]
    grid = load_task(SHARED, "puzzle/sudoku_n4_12")
    assert "\\n" not in grid.messages(grid.samples[0])[0]["content"]


@RELEASED
def test_gold_command() -> None:
    result = CliRunner().invoke(app, ["parallelbench", "gold", "--data-dir", str(SHARED.parent)])
    assert result.exit_code == 0
    assert result.output.count("100.0") >= 22


def test_lengths_are_the_papers() -> None:
    assert {group.folder: group.length for group in GROUPS.values()} == {
        "words_to_sentence": 64,
        "paraphrase_summarize": 128,
        "waiting_line_n15": 128,
        "puzzle": 64,
    }
    assert len(TASKS) == 20


# --- scorers ---


def test_lists_are_read_loosely_and_strictly() -> None:
    assert parse_list('Sure: [x] then ["a b", c ,"d"] ok') == ["a b", "c", "d"]
    assert parse_list("a, b") == ["a", "b"]
    assert parse_list("[]") == []
    assert parse_list_strictly('["a b", "c"]') == ["a b", "c"]
    for wrong in ('["a","b"]', '["a", b]', '["a", "b"', '"a", "b"', '["a"b"]', "[]"):
        assert parse_list_strictly(wrong) is None


def test_lists_are_read_as_the_public_scorer_reads_them() -> None:
    """Nothing between commas is no item; quotes with nothing in them are one; only blanks and quotes are stripped."""
    for right in ('["a","b",]', '["a","b",\n]', '["a","b",\t]', '["a",\n,"b"]', '["a","b", ,]', '[,"a","b"]'):
        assert total("list_match_score", right, '["a", "b"]') == 1.0, right
    for wrong in (
        '["a","b",""]',
        '["","a","b"]',
        '["a"," ","b"]',
        '["a",\n"b"]',
        '["a","b"\t]',
        "['a','b']",
        '["a";"b"]',
    ):
        assert total("list_match_score", wrong, '["a", "b"]') == 0.0, wrong
    assert parse_list_strictly('["a", "]') == ["a", ""]
    # Of two equal items the public scorer lets neither be taken out.
    assert total("list_random_remove_score", "[a, b]", {"input": ["a", "a", "b"]}) == 0.0
    assert total("list_random_remove_score", "[a, a]", {"input": ["a", "a", "b"]}) == 1.0


def test_grids_are_read_as_the_public_scorer_reads_them() -> None:
    symbols = {"symbols": ["A", "B", "1", "2"]}
    whole = ["A,B,1,2", "B,A,2,1", "1,2,A,B", "2,1,B,A"]
    repeats = [f"{row},{row[-1]}" for row in whole]
    assert total("latin_square_score", "\n".join([*whole[:3], repeats[3]]), symbols) == 1.0
    assert total("latin_square_score", "\n".join(repeats), symbols) == 1.0
    assert total("latin_square_score", "\n".join(f"{row},A" for row in whole), symbols) == 0.0
    assert total("latin_square_score", "\n".join(whole), {**symbols, "first_row": list("BA21")}) == 0.0
    arabic = "\u0661234\n3412\n2143\n4321"
    assert score("sudoku_score", arabic, "1234\n3412\n2143\n4321", BARE) == {"score": 1.0, "strict": 1.0}
    assert score("sudoku_score", "\u00b9" + arabic[1:], "1234\n3412\n2143\n4321", BARE) == {"score": 0.0, "strict": 0.0}


LIST = {"input": ["a", "b", "c"], "word": "x"}


@pytest.mark.parametrize(
    ("metric", "answer", "right", "wrong"),
    [
        ("list_match_score", '["a", "b"]', ['["a", "b"]', "[a,b]"], ['["b", "a"]', '["a"]', '["a", "b", "b"]', ""]),
        ("list_shuffle_score", LIST, ["[b, a, c]", "[c, b, a]"], ["[a, b, c]", "[b, a]", "[b, a, a]", "[b, a, c, c]"]),
        (
            "list_random_insert_score",
            LIST,
            ["[x, a, b, c]", "[a, b, c, x]"],
            ["[a, b, c]", "[x, a, b]", "[x, b, a, c]", "[x, a, x, b, c]"],
        ),
        (
            "list_random_remove_score",
            LIST,
            ["[a, b]", "[b, c]", "[a, c]"],
            ["[a, b, c]", "[b, a]", "[a]", "[a, x]", "[a, a]"],
        ),
        (
            "list_random_replace_score",
            LIST,
            ["[x, b, c]", "[a, b, x]"],
            ["[a, b, c]", "[x, a, b, c]", "[x, c, b]", "[x, x, c]", "[a, b, y]"],
        ),
        (
            "latin_square_score",
            {"symbols": ["A", "B", "1", "2"]},
            ["A,B,1,2\nB,A,2,1\n1,2,A,B\n2,1,B,A", "Here:\n A, B,1,2\nB,A,2,1\n\n1,2,A,B\n2,1,B,A\nDone."],
            ["A,B,1,2\nA,B,1,2\n1,2,A,B\n2,1,B,A", "A,B,1,2\nB,A,2,1\n1,2,A,B", "A,B,1\nB,A,2,1\n1,2,A,B\n2,1,B,A"],
        ),
        (
            "sudoku_score",
            "1234\n3412\n2143\n4321",
            ["1234\n3412\n2143\n4321", "Grid:\n1, 2, 3, 4\n3 4 1 2\n2143\n4321"],
            ["1234\n3412\n2143\n4312", "1234\n3412\n2143", "1234\n3412\n2143\n4321\n1234"],
        ),
    ],
)
def test_right_and_wrong_answers(metric: str, answer: object, right: list[str], wrong: list[str]) -> None:
    assert [total(metric, text, answer) for text in right] == [1.0] * len(right)
    assert [total(metric, text, answer) for text in wrong] == [0.0] * len(wrong)


def test_words_must_stand_letter_for_letter() -> None:
    answer = {"words": ["dog", "park"]}
    assert score("sentence_to_words_score", "The dogs like the park.", answer, BARE)["inclusion"] == 1.0
    assert score("sentence_to_words_score", "The Dog likes the park.", answer, BARE)["inclusion"] == 0.0


def test_what_needs_a_tool_is_not_scored_without_it() -> None:
    answer = {"words": ["dog"]}
    assert score("sentence_to_words_score", "a dog", answer, BARE)["score"] is None
    picky = Tools(check=lambda text: int("bad" in text), similarity=lambda text, reference: 0.5)
    assert score("sentence_to_words_score", "a dog", answer, picky)["score"] == 1.0
    assert score("sentence_to_words_score", "a bad dog", answer, picky)["score"] == 0.0
    found = score("paraphrase_score", "Nobody was there at all", {"text": "The house was empty that day"}, picky)
    assert found["score"] == pytest.approx((found["novelty"] or 0) * 0.5)
    assert score("summary_score", "", {"summary": "Anna left."}, BARE)["score"] == 0.0
    assert Tools.find().missing.keys() <= {"grammar", "bertscore"}


def test_rouge_and_bleu() -> None:
    # One word in common, then two: precision over three words, recall over four.
    assert rouge_l("Anna leaves now", "Anna has left today") == pytest.approx(2 * (1 / 3) * (1 / 4) / (1 / 3 + 1 / 4))
    assert rouge_l("Annas left early", "Anna has left today") == pytest.approx(2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4))
    text = "the cat sat on the mat"
    assert bleu(text, text) == pytest.approx(1)
    assert bleu("the cat sat", text) == 0.0  # no 4-gram at all
    # 5/6, 4/5, 3/4, 2/3 of the n-grams match and both have six words.
    assert bleu("the cat sat on the rug", text) == pytest.approx((5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25)
    # All n-grams match; the text is two words short: exp(1 - 6/4).
    assert bleu("the cat sat on", text) == pytest.approx(2.718281828 ** (1 - 6 / 4))
    # Words and marks by the rules of mteval-v13a: marks stand alone, points inside of a number do not.
    assert bleu("It's 3.5, &amp; (ok).", "It's 3.5 , & ( ok ) .") == pytest.approx(1)


def test_unknown_metric_and_field() -> None:
    with pytest.raises(DapdError, match="did you mean 'sudoku_score'"):
        score("sudoko_score", "", "", BARE)
    with pytest.raises(DapdError, match="'word'"):
        score("list_random_insert_score", "[a]", {"input": ["a"]}, BARE)


# --- new instances ---


@pytest.mark.parametrize("name", [n for n in TASKS if n.startswith(("waiting", "puzzle"))])
def test_made_instances_score_100(folder: Path, name: str) -> None:
    task = load_task(folder, name)
    assert gold_scores(task, BARE)["score"] == 100.0
    assert len(task.messages(task.samples[0])) == 3


def test_instances_follow_from_the_seed() -> None:
    one, again, other = (instances("shuffle", Batch(5, 4, seed)) for seed in (7, 7, 8))
    assert one == again
    assert one != other
    assert instances("shuffle", Batch(2, 4, 7)) == one[:2]


def test_made_sudokus_have_one_solution_and_four_blanks() -> None:
    for row in instances("sudoku_n4_12", Batch(20, 3, 0)):
        assert row["input"]["sudoku"].count("0") == 4
        assert all(a in ("0", b) for a, b in zip(row["input"]["sudoku"], row["answer"], strict=True))


def test_make_does_not_write_into_a_used_folder(folder: Path) -> None:
    before = (folder / "puzzle" / "sudoku_n4_12.jsonl").read_bytes()
    with pytest.raises(DapdError, match="samples: 4 there, 100 here"):
        make(folder, Batch())
    with pytest.raises(DapdError, match="not empty"):
        make(folder / "puzzle", Batch())
    assert (folder / "puzzle" / "sudoku_n4_12.jsonl").read_bytes() == before


def test_make_command(tmp_path: Path) -> None:
    runner = CliRunner()
    arguments = ["parallelbench", "make", "--out", str(tmp_path / "new"), "--samples", "2", "--size", "3"]
    assert runner.invoke(app, arguments).exit_code == 0
    assert len(list((tmp_path / "new").rglob("*.jsonl"))) == 12


def test_gold_checks_what_make_writes(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "gold.csv"
    result = CliRunner().invoke(app, ["parallelbench", "gold", "--data-dir", str(folder), "--save-table", str(table)])
    assert result.exit_code == 0, result.output
    assert result.output.count("100.0") >= 12
    assert len([line for line in table.read_text().splitlines() if line.endswith(",100.0")]) == 12
    assert "words_to_sentence, paraphrase_summarize" in result.output.replace("\n", " ")
    missing = CliRunner().invoke(app, ["parallelbench", "gold", "--data-dir", str(tmp_path)])
    assert "holds none of" in str(missing.exception)


def test_make_goes_on_where_it_was_killed(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Batch(samples=4, size=3, seed=1)
    drawn: list[str] = []

    def draw(task: str, asked: Batch) -> list[dict[str, Any]]:
        drawn.append(task)
        if len(drawn) == 5:
            raise KeyboardInterrupt
        return instances(task, asked)

    monkeypatch.setattr(sys.modules[make.__module__], "instances", draw)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "new", batch)
    make(tmp_path / "new", batch)
    assert len(drawn) == 13  # twelve tasks, of which one was begun twice
    for path in sorted(folder.rglob("*.*")):
        assert (tmp_path / "new" / path.relative_to(folder)).read_bytes() == path.read_bytes()
    with pytest.raises(DapdError, match="seed: 1 there, 2 here"):
        make(tmp_path / "new", Batch(samples=4, size=3, seed=2))


def test_make_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        result = CliRunner().invoke(app, ["parallelbench", "make", "--out", str(out), "--samples", "1"])
        assert isinstance(result.exception, DapdError), result.exception
        assert "cannot make the folder" in str(result.exception)


# --- what is refused ---


def test_missing_files_and_columns(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DapdError, match="are not at"):
        load_task(tmp_path / "nowhere", "puzzle/sudoku_n4_12")
    with pytest.raises(DapdError, match=r"cannot read .*task_config.yaml"):
        load_task(folder, "words_to_sentence/easy")
    with pytest.raises(DapdError, match="did you mean 'puzzle/sudoku_n4_12'"):
        load_task(folder, "puzzle/sudoku")
    (tmp_path / "puzzle").mkdir()
    config = tmp_path / "puzzle" / "task_config.yaml"
    config.write_text("puzzle/one:\n  prompt: '{grid}'\n")
    with pytest.raises(DapdError, match="no 'metric'"):
        load_task(tmp_path, "puzzle/one")
    config.write_text("puzzle/one:\n  prompt: '{grid}'\n  metric: sudoku_score\n")
    with pytest.raises(DapdError, match=r"cannot read .*one.jsonl"):
        load_task(tmp_path, "puzzle/one")
    file = tmp_path / "puzzle" / "one.jsonl"
    file.write_text('{"input": {"other": 1}}\n')
    with pytest.raises(DapdError, match="line 1: no column 'answer'"):
        load_task(tmp_path, "puzzle/one")
    file.write_text('{"input": {"other": 1}, "answer": ""}\nnonsense\n')
    with pytest.raises(DapdError, match="line 2: not JSON"):
        load_task(tmp_path, "puzzle/one")
    file.write_text('{"input": {"other": 1}, "answer": ""}\n')
    task = load_task(tmp_path, "puzzle/one")
    with pytest.raises(DapdError, match="'grid'"):
        task.messages(task.samples[0])


# --- decoding ---


def test_a_run_goes_on_and_never_mixes(model: dapd.DiffusionLM, folder: Path, tmp_path: Path) -> None:
    task = load_task(folder, "puzzle/sudoku_n4_12")
    plan = Plan(Setting(strategy("fast-dllm")), length=12)
    whole = evaluate(model, task, plan, tmp_path / "whole")
    assert [record["nfe"] for record in whole] != [0] * 4

    part = tmp_path / "part"
    evaluate(model, task, plan, part, limit=2)
    results = part / "results.jsonl"
    with results.open("a") as file:
        file.write('{"key": "cut')  # what a kill leaves
    done: list[int] = []
    again = evaluate(model, task, plan, part, progress=done.append)
    assert done == [2, 1, 1]
    keep = ("key", "text", "nfe", "tokens")
    assert [[r[k] for k in keep] for r in again] == [[r[k] for k in keep] for r in whole]
    assert len(results.read_text().splitlines()) == 4

    before = results.read_bytes()
    with pytest.raises(DapdError, match=r"threshold: 0.9 there, 0.8 here"):
        evaluate(model, task, Plan(Setting(strategy("fast-dllm", threshold=0.8)), length=12), part)
    assert results.read_bytes() == before


def test_batches_do_not_change_results(model: dapd.DiffusionLM, folder: Path, tmp_path: Path) -> None:
    task = load_task(folder, "waiting_line_n15/copy")
    setting = Setting(strategy("dapd-staged"))
    one = evaluate(model, task, Plan(setting, length=16), tmp_path / "one")
    four = evaluate(model, task, Plan(setting, length=16, batch=3), tmp_path / "four")
    assert [(r["text"], r["nfe"]) for r in one] == [(r["text"], r["nfe"]) for r in four]


def test_summary_is_scored_from_the_texts(folder: Path) -> None:
    task = load_task(folder, "puzzle/sudoku_n4_12")
    texts = [gold(task.samples[0].answer), "nothing", gold(task.samples[2].answer), ""]
    records = [
        {"key": str(i), "text": text, "nfe": 2 + i, "tokens": 10, "seconds": 0.5} for i, text in enumerate(texts)
    ]
    found = summarise(task, records, BARE)
    assert (found.score, found.steps, found.tps, found.n) == (50.0, 3.5, 20.0, 4)
    assert json.dumps(found.parts) == '{"strict": 50.0}'
