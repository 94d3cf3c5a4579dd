"""The comparison of decoders: what is decoded, how it stops and goes on, and what the tables say of known results."""

import json
import runpy
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

import dapd
from dapd.evaluation.compare import Result, read_results
from dapd.lab.checkpoint import export, network_config
from dapd.lab.settings import TrainSettings
from dapd.lab.tokenizer import LabTokenizer

EXPERIMENTS = Path(__file__).parents[2] / "experiments"

Ended = Callable[..., str]


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ended:
    """Runs a script to its end and gives what it printed."""

    def ran(name: str, *arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(EXPERIMENTS / f"{name}.py"), run_name="__main__")
        assert end.value.code == 0, capsys.readouterr().err
        return capsys.readouterr().out

    return ran


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("lab")
    settings, tokenizer = TrainSettings(layers=2, width=16, heads=2, mlp=16), LabTokenizer.build()
    network = dapd.random(network_config(settings, tokenizer), sharpness=4.0).network
    export(where, settings, dict(network.named_parameters()), tokenizer)
    return where


def test_a_sweep_stops_in_time_and_goes_on(script: Ended, model: Path, tmp_path: Path) -> None:
    common = ("-m", model, "--tasks", "latin", "--prompts", 1, "--only", "klass", "--device", "cpu", "--out", tmp_path)
    assert "0 of 1 parts" in script("lab_tradeoff", *common, "--minutes", 1e-9)
    assert not list(tmp_path.rglob("results.jsonl"))
    assert "1 of 1 parts of the sweep are complete:" in script("lab_tradeoff", *common)
    where = tmp_path / model.name / "latin"
    ways = ["", " block_length=16", " eos=defer", " block_length=16 eos=defer", " eos=ban", " block_length=16 eos=ban"]
    wanted = {f"klass confidence={c}{way}" for c in (0.6, 0.9) for way in ways}
    assert {result.decoder for result in read_results(where)} == wanted
    before = (where / "results.jsonl").read_bytes()
    assert "1 of 1" in script("lab_tradeoff", *common)
    assert (where / "results.jsonl").read_bytes() == before


KNOWN = {
    ("quiz-5", "original k=1 block_length=32"): (1.0, 192),
    ("quiz-5", "fast-dllm threshold=0.9"): (0.0, 130),
    ("quiz-5", "fast-dllm threshold=0.9 eos=ban"): (0.8, 70),
    ("quiz-5", "fast-dllm threshold=0.9 block_length=32"): (1.0, 50),
    ("quiz-5", "fast-dllm threshold=0.7 block_length=32"): (1.0, 30),
    ("quiz-5", "dapd-direct tau_max=0.05"): (1.0, 20),
    ("quiz-5", "dapd-direct tau_max=0.15"): (0.8, 10),
    ("quiz-1", "fast-dllm threshold=0.9 block_length=32"): (1.0, 20),
    ("latin", "original k=1"): (1.0, 32),
    ("latin", "fast-dllm threshold=0.9"): (1.0, 8),
    ("latin", "dapd-direct tau_max=0.05"): (0.5, 4),
    ("latin", "dapd-direct tau_max=0.15"): (0.5, 2),
    ("quiz-5", "control-shuffled shortcut=direct"): (0.9, 18),
    ("latin", "control-shuffled shortcut=direct"): (0.5, 3),
    ("quiz-5", "dapd-direct tau_max=0.05 layers=1.0"): (1.0, 19),
    ("tied", "dapd-direct tau_max=0.05"): (1.0, 5),
    ("tied", "fast-dllm threshold=0.9"): (1.0, 4),
    ("tied", "fast-dllm threshold=0.7"): (1.0, 3),
    ("tied", "control-shuffled shortcut=direct"): (1.0, 3),
}
"""Scores and passes of some decoders."""
STOPPED = [("latin", "dapd-direct tau_max=0.15"), ("quiz-5", "fast-dllm threshold=0.7 block_length=32")]
"""Where the run of the second model was stopped, after the first of two prompts."""


@pytest.fixture
def tables(script: Ended, tmp_path: Path) -> str:
    for number, model in enumerate(("one", "two")):
        for (task, decoder), (score, passes) in KNOWN.items():
            family = decoder.split()[0]
            results = [Result(decoder, family, task, i, score, passes + number, 40, 0.1, "x") for i in range(2)]
            if model == "two" and (task, decoder) in STOPPED:
                results = results[:1]
            path = tmp_path / "in" / model / task / "results.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.writelines(json.dumps(asdict(result)) + "\n" for result in results)
    return script("lab_tables", tmp_path / "in", "--out", tmp_path / "out")


def test_the_verdict_takes_the_best_baseline_under_its_best_setting(tables: str) -> None:
    (line,) = [line for line in tables.splitlines() if line.startswith("| quiz-5 | 100.0 in 192.5")]
    assert "| 100.0 in 50.5 (fast-dllm threshold=0.9, block 32) |" in line
    assert "| 100.0 in 20.5 (dapd-direct tau_max=0.05, one block) |" in line
    assert "| 2.46 (" in line


def test_what_goes_against_dapd_is_said(tables: str) -> None:
    (line,) = [line for line in tables.splitlines() if line.startswith("| latin | 100.0 in 32.5")]
    assert "none; at best 50.0 in 4.5 (dapd-direct tau_max=0.05, one block) | - |" in line


def test_one_setting_for_all_tasks(tables: str) -> None:
    """On the short canvas of a Latin square, blocks of 32 are one block."""
    assert "| fast-dllm | fast-dllm threshold=0.9, block 32 | 100.0 | 21.2 | 100.0 | 20.8 |" in tables
    assert "| dapd-direct | dapd-direct tau_max=0.05, one block | 83.3 | 10.2 | 83.3 | 10.2 |" in tables


def section(tables: str, title: str) -> list[str]:
    """The lines of a table under its title, without its head."""
    text = tables.partition(f"## {title}")[2].partition("\n## ")[0]
    return [line for line in text.splitlines() if line.startswith("|")][2:]


def test_controls_stand_beside_the_front_and_do_not_count(tables: str) -> None:
    assert section(tables, "The settings that are not beaten") == [
        "| (control-shuffled shortcut=direct, one block) | 80.0 | 8.5 |",
        "| dapd-direct tau_max=0.05, one block | 83.3 | 10.2 |",
        "| fast-dllm threshold=0.9, block 32 | 100.0 | 21.2 |",
    ]
    assert section(tables, "Other graphs") == [
        "| dapd-direct tau_max=0.05 | 100.0 in 20.5 |",
        "| control-shuffled shortcut=direct | 90.0 in 18.5 |",
        "| dapd-direct tau_max=0.05 layers=1.0 | 100.0 in 19.5 |",
    ]
    assert not any("control" in line or "layers" in line for line in section(tables, "Pareto fronts"))


def test_each_model_has_a_verdict_of_its_own(tables: str) -> None:
    """The second model was stopped at the faster setting of the best baseline, which counts for the first alone."""
    lines = [line for line in section(tables, "The models one by one") if line.startswith("| quiz-5")]
    assert [line.split(" | ")[:3] for line in lines] == [
        ["| quiz-5", "one", "100.0 in 192.0 (original k=1, block 32)"],
        ["| quiz-5", "two", "100.0 in 193.0 (original k=1, block 32)"],
    ]
    assert "100.0 in 30.0 (fast-dllm threshold=0.7, block 32) | 100.0 in 20.0 (dapd-direct" in lines[0]
    assert "100.0 in 51.0 (fast-dllm threshold=0.9, block 32) | 100.0 in 21.0 (dapd-direct" in lines[1]
    assert section(tables, "The same in the mean over the tasks") == [
        "| dapd-direct tau_max=0.05, one block | 83.3 in 10.2 | 83.3 in 9.7 | 83.3 in 10.7 |",
        "| control-shuffled shortcut=direct, one block | 80.0 in 8.5 | 80.0 in 8.0 | 80.0 in 9.0 |",
    ]


def test_half_of_the_prompts_choose_for_the_others(tables: str) -> None:
    base = "100.0 in 50.5 (fast-dllm threshold=0.9, block 32)"
    ours = "100.0 in 20.5 (dapd-direct tau_max=0.05, one block)"
    assert section(tables, "Chosen on one half") == [
        f"| quiz-5 | {half} | {base} | {ours} |" for half in ("even", "odd")
    ]


def test_tied_answers_show_the_papers_settings_alone(tables: str) -> None:
    lines = section(tables, "Tied answers")
    assert [line.split(" |")[0] for line in lines] == ["| dapd-direct tau_max=0.05", "| fast-dllm threshold=0.9"]


def test_the_papers_tables(tables: str) -> None:
    for line in (
        "| Fast-dLLM | 1 block | 0.0 | 130.5 |",
        "| Fast-dLLM | 1 block, EOS banned | 80.0 | 70.5 |",
        "| Fast-dLLM | blocks of 32 | 100.0 | 50.5 |",
        "| Fast-dLLM | 6 | 100.0 | 0.8 | 50.5 |",
        "| DAPD-Direct | 1 | 100.0 | 2.0 | 20.5 |",
        "| fast-dllm threshold=0.9 block_length=32 | 100.0 in 20.5 | 100.0 in 50.5 |",
    ):
        assert line in tables


def test_files_are_written(tables: str, tmp_path: Path) -> None:
    assert (tmp_path / "out" / "tradeoff.md").read_text(encoding="utf-8") + "\n" == tables
    rows = json.loads((tmp_path / "out" / "summary.json").read_text())["rows"]
    assert len(rows) == len(KNOWN) - len(STOPPED)
    assert (tmp_path / "out" / "tradeoff.png").stat().st_size > 1000
