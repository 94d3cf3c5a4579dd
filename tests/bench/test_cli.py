"""`dapd bench` as a user meets it: tables, the JSON line, files, mistakes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import dapd.bench.cases as cases
from dapd import Reuse
from dapd.bench.canvas import measure, tiny
from dapd.bench.report import Report
from dapd.bench.stream import Load, RowCosts
from dapd.bench.targets import MODEL_TARGETS, groups, ratio_of_runs
from dapd.cli.app import app
from dapd.errors import DapdError

SMALL = ["-m", "random:tiny-llada", "--device", "cpu"]
FEW = ["--repeats", "2", "--warmup", "1"]
FIELDS = {"kind", "model", "ms", "low_ms", "high_ms", "wall_ms", "tflops", "floor_ms", "floor_ratio", "peak_gb"}


def run(*args: str, code: int = 0) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["bench", *args], catch_exceptions=False)
    assert result.exit_code == code, result.output
    content: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    assert content["bench"] == args[0]
    return content


@pytest.fixture(autouse=True)
def small_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dapd.bench.floor.SIZES", {"cpu": 64})


def test_forward(tmp_path: Path) -> None:
    file = tmp_path / "f.json"
    shape = ["--prompt", "4,8", "--gen", "8", "--batch", "1,2"]
    content = run("forward", *SMALL, *FEW, *shape, "--capture", "none,auto,none-torch,torch,eager", "--json", str(file))
    assert len(content["rows"]) == 2 * 2 * 5
    assert all(row.keys() >= FIELDS and row["ms"] > 0 for row in content["rows"])
    assert {row["capture"] for row in content["rows"]} == set(cases.CAPTURES)
    assert content["matmul"][0]["tflops"] > 0
    assert json.loads(file.read_text(encoding="utf-8")) == content


def test_step_with_every_way_to_reuse() -> None:
    modes = [mode.value for mode in Reuse]
    shape = ["--prompt", "8", "--gen", "64", "--block", "16", "--refresh", "4"]
    asked = ["--strategies", "original,dapd-staged", "--reuse", ",".join(modes)]
    content = run("step", *SMALL, *FEW, *shape, *asked)
    assert [(row["strategy"], row["reuse"]) for row in content["rows"]] == [
        (strategy, mode) for strategy in ("original", "dapd-staged") for mode in modes
    ]
    assert all(row.keys() >= FIELDS for row in content["rows"])
    # Reuse is timed over whole periods.
    assert all(row["samples"] == (2 if row["reuse"] == "none" else 4) for row in content["rows"])


def test_stream_of_unequal_prompts() -> None:
    shape = ["--prompts", "7", "--shortest", "4", "--longest", "40", "--gen", "24", "--places", "2"]
    # More timed passes than the decodings have, whose 24 tokens take three to eight.
    content = run("stream", *SMALL, *shape, "--repeats", "9", "--warmup", "1", "--first", "9,10", "--steps", "4")
    first = [row for row in content["rows"] if row["kind"] == "first"]
    assert [(row["prompt"], row["steps"]) for row in first] == [(9, 4), (10, 4)]
    filled, fixed, kept = [row for row in content["rows"] if row["kind"] == "stream"]
    assert (filled["how"], fixed["how"]) == ("places filled again", "fixed batches")
    assert filled["row_passes"] == fixed["row_passes"], "each row takes as many passes, whoever shares them"
    assert filled["fewest"] < filled["most"]
    assert all(row["over_ideal"] == row["seconds"] / row["ideal_seconds"] > 0 for row in (filled, fixed, kept))
    assert min(filled["padding"], fixed["padding"]) >= 0


def test_lengths_that_do_not_fit_the_model_are_divided() -> None:
    load, by = Load(shortest=64, longest=448, gen=256).fitting(352)
    assert (load.shortest, load.longest, load.gen, by) == (32, 224, 128, 2)
    assert Load().fitting(704) == (Load(), 1)


def test_steps_after_the_last_full_pass() -> None:
    shape = ["--prompt", "8", "--gen", "64", "--strategies", "original", "--refresh", "4"]
    content = run("step", *SMALL, *FEW, *shape, "--reuse", "none,prefix", "--refresh-until", "9")
    none, prefix = content["rows"]
    assert none["samples"] == prefix["samples"] == 2
    assert prefix["floor_ms"] < none["floor_ms"], "no full pass is counted"
    for asked, complaint in (
        (["--block", "16"], "not both"),
        (["--reuse", "dual"], "refresh_until is set but refresh"),
    ):
        result = CliRunner().invoke(app, ["bench", "step", *SMALL, *FEW, *shape[:6], "--reuse", "prefix", *asked,
                                          "--refresh-until", "9"])  # fmt: skip
        assert result.exit_code == 1
        assert complaint in result.output + str(result.exception)


def test_step_of_the_naive_path_and_of_calibrated_sets() -> None:
    asked = ["--strategies", "dapd-staged,naive,naive-pairs", "--taken", "2"]
    content = run("step", *SMALL, *FEW, "--prompt", "4", "--gen", "16", *asked)
    assert [row["strategy"] for row in content["rows"]] == ["dapd-staged", "naive", "naive-pairs"]


def test_decode_makes_the_asked_number_of_steps() -> None:
    content = run(
        "decode", *SMALL, *FEW, "--prompt", "4", "--gen", "16", "--steps", "5", "--strategies", "original,klass,naive"
    )
    assert [row["steps"] for row in content["rows"]] == [5, 5, 5]
    for row in content["rows"]:
        assert 0 < row["tokens"] <= 16
        assert row["tokens_per_s"] == pytest.approx(1e3 * row["tokens"] / row["wall_ms"])


def test_targets_of_a_model_at_small_lengths(tmp_path: Path) -> None:
    args = ["--repeats", "2", "--warmup", "1", "--rounds", "1", "--divide", "16", "--json", str(tmp_path / "t.json")]
    content = run("targets", *SMALL, *args, code=1)
    found = {row["target"]: row for row in content["rows"] if row["kind"] == "target"}
    assert len(found) == len(MODEL_TARGETS)
    for name, row in found.items():
        if "GB" in name or "memory" in name or "rested" in name:
            assert "not measured on cpu" in row["error"]
        else:
            assert row["measured"] > 0
            assert isinstance(row["met"], bool)
    steps = [row for row in content["rows"] if row["kind"] == "step" and "run_floor_ms" in row]
    assert len(steps) == 8, "those that are known precisely: three shapes, plain and DAPD, and the two of reuse"
    for row in steps:
        assert [row["floor_ms"]] == row["run_floor_ms"], "of its only round"
        assert row["floor_ratio"] == pytest.approx(row["ms"] / row["floor_ms"])
    parts = [row for row in content["rows"] if row["kind"] == "parts"]
    assert len(parts) == 3
    assert all(row["forward_ms"] > 0 for row in parts)
    assert all(
        sum(row[part] for part in ("forward_ms", "capture_ms", "rest_ms")) == pytest.approx(row["step_ms"])
        for row in parts
    )
    assert json.loads((tmp_path / "t.json").read_text(encoding="utf-8")) == content


def test_what_fails_says_why_and_once() -> None:
    report = Report("targets", torch.device("cpu"), None)
    step = {"kind": "step", "model": "m", "strategy": "my.py:Star:n=1", "error": "RuntimeError: no memory"}
    about = {"kind": "target", "model": "m", "limit": 1, "bound": "at most", "measured": None}
    for row in (
        step,
        {**about, "target": "a", "error": step["error"]},
        *({**about, "target": name, "error": "peak_gb is not measured on cpu"} for name in "bc"),
    ):
        report.add(row)
    assert report.failures() == [
        "step m my.py:Star:n=1: RuntimeError: no memory",
        "target m: peak_gb is not measured on cpu",
    ]


def test_costs_of_one_length_are_those_of_whole_rows() -> None:
    costs = RowCosts(gen=256, knots=[128], values=[3.0])
    assert costs(128) == 3
    assert costs(100) == 3 * (100 + 256) / (128 + 256)


def test_costs_between_and_beyond_the_lengths_that_were_measured() -> None:
    costs = RowCosts(gen=256, knots=[100, 200, 300], values=[1.0, 2.0, 4.0])
    assert [costs(length) for length in (50, 150, 200, 250, 350)] == [0.5, 1.5, 2.0, 3.0, 5.0]
    later = RowCosts(gen=256, knots=[100, 200, 300], values=[1.5, 2.5, 4.5])
    assert costs.averaged_with(later)(200) == 2.25


def test_targets_of_the_lab_model() -> None:
    content = run("targets", "-m", "lab", "--device", "cpu", *FEW, "--rounds", "1", "--divide", "8")
    [target] = [row for row in content["rows"] if row["kind"] == "target"]
    assert target["limit"] == 1.1
    assert target["measured"] > 0


def test_cases_of_one_shape_are_measured_together() -> None:
    shapes = [{(c.prompt, c.gen, c.batch) for c in group} for group in groups(MODEL_TARGETS)]
    assert all(len(shape) == 1 for shape in shapes)
    assert len({shape for [shape] in map(list, shapes)}) == len(shapes)


def test_ratios_pair_runs_that_follow_each_other() -> None:
    assert ratio_of_runs([1.1, 2.2, 9.0], [1.0, 2.0, 3.0]) == pytest.approx(1.1)
    assert ratio_of_runs([1.0], [1.0, 2.0]) is None


def test_parity_of_a_path_with_itself() -> None:
    content = run("parity", *SMALL, "--prompts", "2", "--task", "latin", "--strategies", "dapd-staged")
    assert [row["dtype"] for row in content["rows"]] == ["float32", "bfloat16"]
    for row in content["rows"]:
        assert row["commits"] > 0
        assert row["differing"] == row["differing_forced"] == row["rows_with_other_text"] == 0
    assert content["rows"][1]["versus_first_dtype"] > 0


def test_a_failure_costs_one_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = cases.Bench.time_step

    def fails(self: cases.Bench, case: cases.Case) -> Any:
        if case.batch == 2:
            raise RuntimeError("out of memory\nand a long explanation")
        return real(self, case)

    monkeypatch.setattr(cases.Bench, "time_step", fails)
    content = run(
        "step", *SMALL, *FEW, "--prompt", "4", "--gen", "8", "--batch", "1,2,3", "--strategies", "original", code=1
    )
    assert [row.get("error") for row in content["rows"]] == [None, "RuntimeError: out of memory", None]


def test_too_many_steps_say_what_to_change() -> None:
    content = run("step", *SMALL, "--prompt", "4", "--gen", "8", "--strategies", "original", code=1)
    assert "raise --gen, or lower --warmup and --repeats" in content["rows"][0]["error"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["step", "--strategies", "dapd-stagd"], "did you mean 'dapd-staged'"),
        (["step", "--strategies", "dapd-staged@llada/none"], "unknown setting of the paper"),
        (["step", "--strategies", "absent.py:Mine"], "there is no file absent.py"),
        (["step", "--strategies", ","], "is empty"),
        (["step", "--reuse", "prefx"], "did you mean 'prefix'"),
        (["step", "--reuse", "prefix", "--strategies", "naive"], "reuses nothing"),
        (["step", "--prompt", "a,256"], "--prompt holds 'a'; give whole numbers"),
        (["forward", "--gen", "-4"], "--gen holds '-4'"),
        (["step", "--batch", "0"], "batch is 0"),
        (["step", "--graphs", "maybe"], "unknown value of --graphs"),
        (["step", "--block", "7"], "do not divide"),
        (["step", "--repeats", "0"], "repeats is 0"),
        (["forward", "--device", "cpu", "--graphs", "on"], "needs a CUDA device"),
        (["forward", "--capture", "flash"], "unknown capture method"),
        (["decode", "--steps", "1000"], "steps is 1000; allowed: 1 to the 256 new tokens"),
        (["step", "--json", "no/such/folder/x.json"], "no/such/folder/x.json: No such file"),
        (["targets", "--rounds", "0"], "rounds is 0"),
        (["parity", "--dtypes", "float12"], "unknown dtype"),
        (["parity", "--task", "nothing"], "unknown task"),
        (["parity", "--prompts", "0"], "prompts is 0"),
        (["forward", "--device", "quantum"], "unknown device"),
        (["forward", "-m", "random:tiny-lada"], "did you mean 'tiny-llada'"),
    ],
)
def test_mistakes_end_with_a_message(args: list[str], said: str) -> None:
    with pytest.raises(DapdError) as error:
        CliRunner().invoke(app, ["bench", *args], catch_exceptions=False)
    assert said in str(error.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("command", ["forward", "step", "decode", "targets", "parity"])
def test_cuda_without_cuda(command: str) -> None:
    with pytest.raises(DapdError, match="sees no CUDA GPU; give cpu"):
        CliRunner().invoke(app, ["bench", command, "--device", "cuda"], catch_exceptions=False)


def test_passes_against_the_length_of_the_canvas() -> None:
    result = CliRunner().invoke(app, ["bench", "canvas", "--columns", "32,64", "--repeats", "2", "--warmup", "1"])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout.splitlines()[-1])["rows"]
    assert [row["columns"] for row in rows] == [32, 64]
    assert all(row["dapd_ms"] > 0 and row["ratio"] == row["dapd_ms"] / row["plain_ms"] for row in rows)
    with pytest.raises(DapdError, match="at least 14 columns"):
        CliRunner().invoke(app, ["bench", "canvas", "--columns", "8"], catch_exceptions=False)


def test_a_long_canvas_costs_at_most_three_plain_passes() -> None:
    """Both are measured in the same moments: what else the machine does falls on both."""
    bench = tiny(2048, warmup=1, repeats=3)
    assert min(measure(bench, 2048)["ratio"] for _ in range(3)) < 3
