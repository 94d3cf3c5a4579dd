"""What a user or a machine does wrong ends in one line and exit code 2, before the work and not after it."""

import json
import os
import resource
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pytest

from dapd.cli import main
from dapd.evaluation.runs import Record, Run, read_records

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@dataclass(frozen=True)
class End:
    """How a program ended."""

    code: object
    out: str
    errors: str


def ends(run: Callable[[], object], *arguments: object) -> End:
    """Run a program to its end; an exception other than its exit is a failure of the test."""
    out, errors = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(errors), redirect_stdout(out):
        patch.setattr(sys, "argv", ["dapd", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            run()
    return End(end.value.code, out.getvalue(), errors.getvalue())


def fails(run: Callable[[], object], *arguments: object) -> str:
    """The one line of a program that ends with code 2."""
    done = ends(run, *arguments)
    assert done.code == 2, done.errors
    assert done.errors.startswith("error: ")
    assert done.errors.count("\n") == 1, done.errors
    return done.errors


@contextmanager
def no_room(size: int = 2000) -> Iterator[None]:
    """A disk on which no file grows beyond a size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file, where a folder is wanted."""
    (tmp_path / "file").write_text("x")
    return tmp_path / "file"


TINY = ("generate", "hello", "-m", "random:tiny-llada", "--device", "cpu", "-n", 8)


def test_a_trace_that_could_not_be_written_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dapd.cli.generate.opened", lambda *_, **__: pytest.fail("it was begun"))
    assert "No such file or directory" in fails(main, *TINY, "--trace", tmp_path / "nodir" / "x.jsonl")
    assert "it is a folder" in fails(main, *TINY, "--trace", tmp_path)


@pytest.mark.parametrize("option", ["--file", "--messages", "--json-schema"])
def test_a_trace_does_not_take_the_place_of_an_input(tmp_path: Path, option: str) -> None:
    source, link = tmp_path / "in.jsonl", tmp_path / "link.jsonl"
    source.write_text("{}")
    link.symlink_to(source)
    words = [word for word in TINY if word != "hello" or option == "--json-schema"]
    for trace in (source, link):
        assert "it is the input itself" in fails(main, *words, option, source, "--trace", trace)
    assert source.read_text() == "{}"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_the_answer_is_shown_though_the_trace_finds_no_room() -> None:
    done = ends(main, *TINY, "--json", "--trace", "/dev/full")
    assert json.loads(done.out)["nfe"] > 0
    assert (done.code, done.errors.splitlines()[-1]) == (2, "error: cannot write /dev/full: No space left on device")


def test_a_prompt_that_is_not_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "prompt"
    path.write_bytes(b"caf\xe9")
    options = ("generate", "-m", "random:tiny-llada", "--device", "cpu")
    assert "cannot read the prompt" in fails(main, *options, "--file", path)
    assert fails(main, *options, "--file", "nofile").endswith("from nofile: No such file or directory\n")
    with path.open(encoding="utf-8") as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert "cannot read the prompt from standard input" in fails(main, *options)
    with path.open(encoding="utf-8", errors="surrogateescape") as file:  # standard input in the locale C.UTF-8
        monkeypatch.setattr(sys, "stdin", file)
        assert "the text is not UTF-8 at character 4" in fails(main, *options)
    assert "the text is not UTF-8 at character 4" in fails(main, *options, "--template", "caf\udce9 [MASK]")


HUGE = "9" * 30


@pytest.mark.parametrize(
    "pair",
    ["seed", "block_length", "n_blocks", "refresh", "settle", "top_k", "temperature", "layers", "tau_min", "suppress"],
)
def test_settings_beyond_all_measure(pair: str) -> None:
    """Numbers that no 64 bits hold, and those that no float holds."""
    more = {"refresh": ("--set", "reuse=prefix"), "settle": ("--set", "reuse=settled")}.get(pair, ())
    for value in (HUGE, f"-{HUGE}", "1e999", f"{HUGE},"):
        done = ends(main, *TINY, *more, "--set", f"{pair}={value}")
        assert done.code in (0, 2), done.errors  # some may be that large
        assert (done.code, done.errors.count("error: ")) in ((0, 0), (2, 1))


def test_lengths_beyond_all_measure() -> None:
    assert "the model takes 1024" in fails(main, *TINY[:-1], 99_999_999_999)
    assert "the model takes 1024" in fails(main, *TINY[:-1], HUGE)
    masks = fails(main, "generate", "-m", "random:tiny-llada", "--device", "cpu", "--template", f"a [MASK*{HUGE}]")
    assert "the model takes 1024" in masks


@pytest.mark.parametrize("device", ["foo", "cuda:99", "cpu:x", "", "meta", "hpu", "vulkan"])
def test_devices_that_are_not_there(device: str) -> None:
    assert "device" in fails(main, "mrf", "report", "--quick", "--device", device)


@pytest.mark.parametrize("below", [False, True])
@pytest.mark.parametrize("command", ["report --quick", "train --models 1 --steps 5", "sweep --steps 5 --only w64-h4"])
def test_folders_that_cannot_be_made(file: Path, command: str, below: bool) -> None:
    out = file / "below" if below else file
    assert "cannot make the folder" in fails(main, "mrf", *command.split(), "--device", "cpu", "--out", out)


@pytest.mark.parametrize("wrong", ["--out", "--run"])
def test_a_training_whose_folders_cannot_be_made_is_not_begun(
    file: Path, tmp_path: Path, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dapd.lab.train.Trainer", lambda *_: pytest.fail("it was begun"))
    folders = {"--out": tmp_path / "out", "--run": tmp_path / "run", wrong: file / "below"}
    words = [word for pair in folders.items() for word in pair]
    assert f"cannot make the folder {file / 'below'}" in fails(main, "lab", "train", *words)


@pytest.mark.parametrize("name", ["results.json", "report.md"])
def test_a_report_that_could_not_be_written_is_not_begun(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dapd.mrf.report.build", lambda *_, **__: pytest.fail("it was begun"))
    (tmp_path / name).mkdir()
    assert "it is a folder" in fails(main, "mrf", "report", "--quick", "--device", "cpu", "--out", tmp_path)


def test_a_sweep_without_time() -> None:
    assert "minutes is 0" in fails(main, "mrf", "sweep", "--minutes", 0, "--out", "nowhere", "--device", "cpu")
    assert not Path("nowhere").exists()


@pytest.mark.parametrize("command", ["forward", "step", "decode"])
def test_a_bench_that_does_not_fit_the_model(command: str) -> None:
    words = fails(main, "bench", command, "-m", "random:tiny-llada", "--device", "cpu", "--prompt", 100_000)
    assert "--prompt 100000 and --gen 256 need 100256 columns; random:tiny-llada takes at most 1024" in words


def test_a_bench_whose_numbers_cannot_be_written(file: Path, tmp_path: Path) -> None:
    small = ("bench", "forward", "-m", "random:tiny-llada", "--device", "cpu", "--prompt", 4, "--gen", 4, "--json")
    assert "Not a directory" in fails(main, *small, file / "a.json")
    assert "it is a folder" in fails(main, *small, tmp_path)
    if Path("/dev/full").exists():
        assert "No space left on device" in fails(main, *small, "/dev/full")


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("lab_segments", "--task nothing", "unknown task"),
        ("lab_segments", "--prompts 1 -s nothing", "unknown strategy"),
        ("lab_tradeoff", "--tasks nothing", "unknown task"),
        ("lab_tradeoff", "-m nothing", "unknown model"),
        ("lab_tradeoff", "-m lab -m lab", "folders of one name"),
        ("lab_tables", "nowhere", "holds no results"),
        ("toy_mrf", "--models 0", "--models is 0"),
        ("toy_mrf", "--steps 0", "at least 1"),
        ("toy_sweep", "--only nothing", "there is no stack 'nothing'"),
        ("toy_sweep", "--minutes 0", "minutes is 0"),
    ],
)
def test_scripts_end_in_one_line_too(tmp_path: Path, name: str, arguments: str, said: str) -> None:
    script = lambda: runpy.run_path(str(EXPERIMENTS / f"{name}.py"), run_name="__main__")  # noqa: E731
    assert said in fails(script, *arguments.split(), "--out", tmp_path / "out")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_output_that_finds_no_room() -> None:
    """Seen only when the last of it is written."""
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "dapd", "strategies"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (2, "error: No space left on device\n")


@pytest.mark.parametrize("module", ["torch", "typer"])
def test_an_interrupt_while_modules_load(tmp_path: Path, module: str) -> None:
    """torch is loaded with the package, typer with the command line."""
    # A process that was started in the background ignores interrupts unless it is told not to.
    interrupt = "signal.signal(signal.SIGINT, signal.default_int_handler)\nsignal.raise_signal(signal.SIGINT)"
    (tmp_path / f"{module}.py").write_text(f"import signal\n{interrupt}\n")
    scripts = tomllib.loads((EXPERIMENTS.parent / "pyproject.toml").read_text())["project"]["scripts"]
    place, _, function = scripts["dapd"].partition(":")
    path = os.pathsep.join([str(tmp_path), str(EXPERIMENTS.parent / "src")])
    done = subprocess.run(
        [sys.executable, "-c", f"from {place} import {function}; {function}()", "strategies"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("command", ["batch in.jsonl out.jsonl -n 8", "compare -t in.jsonl -s original -n 8 --no-plot"])
def test_after_an_interrupt_the_same_command_goes_on(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.jsonl").write_text("".join(f'{{"prompt": "{word}", "answer": "x"}}\n' for word in ("a", "b", "c")))
    words = [*command.split(), "-m", "random:tiny-llada", "--device", "cpu", "--batch", "1"]
    append = Run.append

    def interrupted(run: Run, records: list[Record]) -> None:
        append(run, records)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Run, "append", interrupted)
        done = ends(main, *words)
    assert done.code == 130
    assert done.errors.splitlines()[-1] == "note: interrupted; the same command continues from here"
    [kept] = tmp_path.rglob("results.jsonl")
    assert len(read_records(kept)) == 1
    assert ends(main, *words).code == 0
    assert len(read_records(kept)) == 3


def test_no_word_about_numpy_where_there_is_none() -> None:
    """The command line alone does not install it, and torch warns whoever runs the first command."""
    without = "import sys; sys.modules['numpy'] = None; from dapd_command import main; main()"
    ask = ["generate", "abc", "-m", "random:tiny-llada", "--device", "cpu", "-n", "4", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", without, *ask],
        env={**os.environ, "PYTHONPATH": str(EXPERIMENTS.parent / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["nfe"] >= 1


def test_a_full_disk_under_a_training(tmp_path: Path) -> None:
    arguments = ("mrf", "train", "--models", 1, "--steps", 10, "--batch", 2, "--width", 8, "--heads", 1, "--layers", 1)
    with no_room():
        assert "checkpoint.pt" in fails(main, *arguments, "--device", "cpu", "--out", tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [".lock", "recipe.json"]


def test_a_full_disk_under_instances_and_figures(tmp_path: Path) -> None:
    with no_room():
        words = fails(main, "parallelbench", "make", "--out", tmp_path / "made", "--samples", 50)
    assert "cannot write" in words
    assert "File too large" in words
    assert not list(tmp_path.rglob("*.draft"))
