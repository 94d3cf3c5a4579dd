"""The command line as a user meets it: output, files, exit codes."""

import json
import subprocess
import sys
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

import pytest
from typer.testing import CliRunner

import dapd
from dapd.cli import main
from dapd.cli.app import app
from dapd.strategies import PRESETS

TINY = ["-m", "random:tiny-llada", "-n", "16"]


def run(*args: str, stdin: str | None = None) -> str:
    result = CliRunner().invoke(app, ["generate", *args], input=stdin, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def fails(*args: str) -> str:
    """Run the program's own entry; it must end with code 2 and one message."""
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(StringIO()) as said:
        patch.setattr(sys, "argv", ["dapd", *args])
        patch.setattr(sys, "stdin", StringIO(""))
        with pytest.raises(SystemExit) as end:
            main()
    assert end.value.code == 2
    return said.getvalue()


def test_the_prompt_comes_from_argument_file_or_stdin(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("hello\n", encoding="utf-8")
    said = run("hello", *TINY)
    assert (
        said
        == run("--file", str(tmp_path / "p.txt"), *TINY)
        == run("-", *TINY, stdin="hello\n")
        == run(*TINY, stdin="hello")
    )
    assert said != run("something else", *TINY)


def test_json_holds_what_the_python_interface_gives() -> None:
    content = json.loads(run("hello", *TINY, "--json", "-s", "fast-dllm", "--set", "threshold=0.5"))
    done = dapd.load("random:tiny-llada", device="cpu").generate(
        "hello", strategy=dapd.strategy("fast-dllm", threshold=0.5), max_new_tokens=16
    )
    assert content["ids"] == done.ids
    assert content["nfe"] == done.nfe
    assert content["strategy"] == {"name": "Threshold", "threshold": 0.5, "budget": None}


def test_loop_settings_reach_the_loop(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    run("hello", *TINY, "--set", "block_length=8", "--set", "reuse=dual", "--set", "eos=defer", "--trace", str(trace))
    [read] = dapd.read_traces(trace)
    assert read.about["options"]["block_length"] == 8
    assert read.about["options"]["reuse"] == "dual"
    assert read.about["options"]["sampling"]["eos"] == "defer"
    assert sum(len(r.positions) for r in read.steps) == 16
    assert all(p < 5 + 8 for r in read.steps for p in r.positions if r.masks_left >= 8)


def test_edges_are_kept_on_request(tmp_path: Path) -> None:
    run("hello", *TINY, "--edges", "--trace", str(tmp_path / "t.jsonl"))
    [read] = dapd.read_traces(tmp_path / "t.jsonl")
    assert read.steps[0].edges
    assert all(5 <= i < 21 and 5 <= j < 21 and i != j for i, j in read.steps[0].edges)


def test_template_is_filled() -> None:
    assert run("--template", "The capital of [MASK*3] is [MASK].", "-m", "random:tiny-llada").startswith(
        "The capital of "
    )


def test_live_is_quiet_when_not_on_a_terminal() -> None:
    assert run("hello", *TINY, "--live") == run("hello", *TINY)


@pytest.mark.parametrize("strategy", PRESETS)
def test_every_preset_runs(strategy: str) -> None:
    assert json.loads(run("hi", *TINY, "--json", "-s", strategy))["complete"]


def test_lists_name_everything() -> None:
    runner = CliRunner()
    shown = runner.invoke(app, ["strategies"], env={"COLUMNS": "200"}).output
    assert all(name in shown for name in PRESETS)
    assert "Edge threshold" in runner.invoke(app, ["strategies", "dapd-staged"], env={"COLUMNS": "200"}).output
    assert "dapd-direct@dream/ifeval" in runner.invoke(app, ["strategies", "--paper"], env={"COLUMNS": "200"}).output
    assert "LLaDA-8B-Instruct" in runner.invoke(app, ["models"], env={"COLUMNS": "200"}).output
    assert "torch" in runner.invoke(app, ["doctor"], env={"COLUMNS": "200"}).output


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["generate", "x", "-m", "nowhere"], "unknown model"),
        (["generate", "x", "-m", "lba"], "no such folder; did you mean 'lab'? give lab"),
        (["generate", "x", "-m", "random:tiny-lada"], "did you mean 'tiny-llada'"),
        (["generate", "x", "-s", "dapd-stagd"], "did you mean 'dapd-staged'"),
        (["generate", "x", "-s", "dapd-staged@llada/gsm8"], "did you mean 'dapd-staged@llada/gsm8k'"),
        (["generate", "x", "--set", "tau_mn=1"], "did you mean 'tau_min'"),
        (["generate", "x", "--set", "tau_min=0.5"], "tau_min <= tau_max"),
        (["generate", "x", "--set", "tau_min=abc"], "it must be a number"),
        (["generate", "x", "--set", "tau_min"], "field=value"),
        (["generate", "x", "-n", "10", "--set", "block_length=4"], "does not divide"),
        (["generate", "x", "-n", "5000"], "1024"),
        (["generate", "x", "-n", "0"], "at least 1"),
        (["generate", "x", "--dtype", "float12"], "unknown dtype"),
        (["generate", "x", "--file", "nope.txt"], "give one of them"),
        (["generate", "--file", "nope.txt"], "cannot read"),
        (["generate"], "empty"),
        (["generate", "--template", "no marks"], "no [MASK]"),
        (["strategies", "nope"], "unknown strategy"),
        (["chat", "-n", "0"], "Invalid value"),
    ],
)
def test_mistakes_end_with_a_message(args: list[str], said: str) -> None:
    tiny = ["-m", "random:tiny-llada"] if args[0] == "generate" and "-m" not in args else []
    assert said in fails(*args, *tiny)


def test_the_program_ends_without_a_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dapd", "generate", "x", "-m", "nowhere"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: unknown model 'nowhere'")
    assert "Traceback" not in done.stderr


def test_a_form_is_kept(tmp_path: Path) -> None:
    pytest.importorskip("outlines_core", reason="forms need dapd[forms]")
    assert run("hello", *TINY, "--regex", "[0-9]{3}").strip().isdigit()
    path = tmp_path / "schema.json"
    path.write_text('{"type": "boolean"}', encoding="utf-8")
    assert run("hello", *TINY, "--json-schema", str(path)).strip() in ("true", "false")
    assert "needs at least" in fails("generate", "hello", *TINY, "--regex", "[0-9]{30}")
    assert "not for a template" in fails("generate", *TINY, "--template", "a[MASK]", "--regex", "a")
    path.write_text("{", encoding="utf-8")
    assert "is not JSON" in fails("generate", "hello", *TINY, "--json-schema", str(path))
    assert "cannot read" in fails("generate", "hello", *TINY, "--json-schema", str(tmp_path / "none"))


def test_chatting_and_serving_refuse_in_one_line(tmp_path: Path) -> None:
    assert "no chat template" in fails("chat", "-m", "random:tiny-llada")
    pytest.importorskip("fastapi", reason="the server needs dapd[serve]")
    assert "API keys" in fails("serve", "-m", "random:tiny-llada", "--host", "0.0.0.0")
    assert "cannot read API keys" in fails("serve", "--keys", str(tmp_path / "none"))


@pytest.mark.parametrize("group", [[], ["lab"], ["mrf"], ["bench"], ["parallelbench"]])
def test_a_group_of_commands_alone_lists_them(group: list[str]) -> None:
    shown = CliRunner().invoke(app, group)
    assert shown.exit_code == 2
    assert "Commands" in shown.output
