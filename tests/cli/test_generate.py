"""`dapd generate` beyond one prompt: files of prompts, conversations, samples, stop strings, what is kept, defaults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import dapd
from dapd.cli.app import app
from dapd.cli.generate import why_empty
from dapd.errors import DapdError
from dapd.generation import DEFAULT_NEW_TOKENS
from dapd.lab.tasks import TASKS, Task, get
from dapd.lab.tasks.rooms import room, room_for

TINY = ["-m", "random:tiny-llada", "--device", "cpu", "-n", "8"]
LAB = ["-m", "lab:any-text", "--device", "cpu", "-n", "8"]


def run(*args: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(app, ["generate", *args, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def refused(*args: str) -> str:
    result = CliRunner().invoke(app, ["generate", *args])
    assert isinstance(result.exception, DapdError), result.output
    return str(result.exception)


def test_prompts_of_a_file_one_line_each(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    chat = [{"role": "user", "content": "Emil"}]
    lines: list[object] = ["hello", {"prompt": "Anna"}, {"messages": chat}, chat]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n", encoding="utf-8")
    said = run("--file", str(path), *LAB)
    alone = [run(text, *LAB)[0]["ids"] for text in ("hello", "Anna", "Emil", "Emil")]
    assert [one["ids"] for one in said] == alone


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 1 of"),
        ("{}", "is not a prompt"),
        ('{"messages": [{"role": "user"}]}', "is not a prompt"),
        ("", "no prompts"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(line + "\n", encoding="utf-8")
    assert words in refused("--file", str(path), *TINY)


def test_a_conversation_and_a_system_message(tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    path = tmp_path / "talk.json"
    path.write_text(json.dumps(talk), encoding="utf-8")
    lm = dapd.load("lab:any-text", device="cpu")
    opening = {"role": "system", "content": "short"}
    [said] = run("--messages", str(path), "--system", "short", *LAB)
    assert said["ids"] == lm.generate([opening, *talk], max_new_tokens=8, early_stop=True).ids
    [said] = run("c", "--system", "short", *LAB)
    assert said["ids"] == lm.generate([opening, talk[2]], max_new_tokens=8, early_stop=True).ids


def test_samples_differ_and_their_seeds_follow_each_other() -> None:
    said = run("hello", *TINY, "--samples", "3", "--set", "temperature=1.0", "--set", "seed=5")
    assert len({tuple(one["ids"]) for one in said}) == 3
    [second] = run("hello", *TINY, "--set", "temperature=1.0", "--set", "seed=6")
    assert second["ids"] == said[1]["ids"]


def test_a_stop_string_ends_the_text() -> None:
    [whole] = run("hello", *TINY)
    stop = whole["text"][3]
    [cut] = run("hello", *TINY, "--stop", stop, "--stop", "never said")
    assert cut["text"] == whole["text"][: whole["text"].index(stop)]
    assert cut["finish_reason"] == "stop"
    assert cut["ids"] == whole["ids"]


def test_the_likeliest_tokens_of_every_commit(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    [said] = run("hello", *TINY, "--top", "3", "--trace", str(trace))
    assert [token["token"] for token in said["tokens"]] == said["ids"]
    for token in said["tokens"]:
        best = token["top"]
        assert len(best) == 3
        assert best[0][0] == token["token"], "without a temperature the likeliest one is committed"
        assert best[0][1] >= best[1][1] >= best[2][1]
        assert token["pass"] >= 1
    [read] = dapd.read_traces(trace)
    assert read.commits() == said["tokens"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["x", "--edges"], "--trace"),
        (["x", "--top", "2"], "--trace"),
        (["x", "--pace", "1"], "--live"),
        (["x", "--samples", "2"], "temperature"),
        (["x", "--raw", "--system", "y"], "--raw"),
        (["--template", "a[MASK]"], "leave out -n"),
        (["--messages", "nowhere.json"], "cannot read"),
    ],
)
def test_what_would_be_ignored_is_refused(args: list[str], words: str) -> None:
    assert words in refused(*args, *TINY)


def test_an_empty_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "empty.txt"
    path.write_text(" \n", encoding="utf-8")
    assert "empty.txt is empty" in refused("--file", str(path), *TINY)


@pytest.mark.parametrize("task", TASKS.values(), ids=list(TASKS))
def test_the_room_of_a_prompt_is_the_canvas_of_its_task(task: Task) -> None:
    for example in task.examples(5):
        assert room(example.prompt) == task.canvas(example)


def test_prompts_of_the_lab_alone_and_several() -> None:
    def asked(*more: str) -> Any:
        return CliRunner().invoke(app, ["lab", "prompts", *more])

    [example] = TASKS["latin"].examples(1)
    assert asked("-t", "latin", "--bare").output == example.prompt + "\n"
    for several in (["-t", "latin", "-n", "2"], ["-t", "latin,shuffle"], []):
        refused = asked("--bare", *several)
        assert isinstance(refused.exception, DapdError)
        assert "--json as a .jsonl file, which `dapd batch` reads" in str(refused.exception)
    lines = asked("-t", "latin, shuffle", "-t", "tied", "--json").output.splitlines()
    assert [json.loads(line)["task"] for line in lines] == ["latin", "shuffle", "tied"]
    assert f"{example.prompt}\n\n{example.answer}\n" in asked("-t", "latin").output  # apart, where nothing is dimmed


def test_another_prompt_has_no_room_of_its_own() -> None:
    assert room("What is the meaning of life?") is None


def test_the_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output.strip() == f"dapd {dapd.__version__}"


def test_a_model_and_a_completion_fit_into_a_line() -> None:
    lm = dapd.load("random:tiny-llada", device="cpu")
    assert repr(lm) == "DiffusionLM('random:tiny-llada', Transformer, device='cpu')"
    assert len(repr(lm.generate("hello", max_new_tokens=256))) < 120


def test_a_model_of_the_lab_is_known_by_its_words_and_not_by_its_name() -> None:
    lm = dapd.load("lab")
    lm.name = "another"
    prompt = get("quiz-5").examples(1)[0].prompt
    assert room_for(lm, prompt) == get("quiz-5").room != DEFAULT_NEW_TOKENS
    assert room_for(dapd.load("random:tiny-llada", device="cpu"), prompt) == DEFAULT_NEW_TOKENS


def test_a_conversation_has_the_room_of_its_last_message() -> None:
    """Whether a file has a prompt as a text or as messages must not change how many tokens are decoded."""
    lm = dapd.load("lab")
    prompt = get("shuffle").examples(1)[0].prompt
    before = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    assert room_for(lm, [*before, {"role": "user", "content": prompt}]) == room_for(lm, prompt) == get("shuffle").room
    assert room_for(lm, [{"role": "user", "content": prompt}, *before]) == DEFAULT_NEW_TOKENS
    assert room_for(lm, lm.encode(prompt)) == DEFAULT_NEW_TOKENS


def test_an_empty_text_says_why() -> None:
    lm = dapd.random("tiny-llada")
    eos = lm.network.profile.eos_id
    for amount, empty in ((100.0, True), (-100.0, False)):
        done = lm.generate("hi", max_new_tokens=8, strategy="original", bias=((eos, amount),))
        reason = why_empty(done.trace)
        assert (done.n_generated == 0) is empty
        assert (reason is not None) is empty
        if reason is not None:
            (step,) = [one["pass"] for one in done.trace.commits() if one["token"] == eos][:1]
            assert f"in pass {step} of {done.nfe}" in reason
    template = lm.infill([5, lm.network.profile.mask_id, 6], bias=((eos, 100.0),))
    assert why_empty(template.trace) is None
