"""The comparison: what is decoded, kept, resumed, refused and summed up; the model is a tiny random one."""

import json
import math
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import dapd
from dapd.cli.app import app
from dapd.errors import DapdError
from dapd.evaluation.compare import Comparison, Result, decoders, read_results
from dapd.evaluation.edges import auc, edge_auc
from dapd.evaluation.summary import Row, fewest_at, interval, parallelism, pareto, summarise
from dapd.lab.checkpoint import export, network_config
from dapd.lab.settings import TrainSettings
from dapd.lab.tasks import get
from dapd.lab.tokenizer import LabTokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained lab model: the plumbing does not care how well it answers."""
    where = tmp_path_factory.mktemp("lab")
    settings, tokenizer = TrainSettings(layers=4, width=32, heads=2, mlp=48), LabTokenizer.build()
    network = dapd.random(network_config(settings, tokenizer), sharpness=4.0).network
    export(where, settings, dict(network.named_parameters()), tokenizer)
    return where


@pytest.fixture(scope="module")
def model(folder: Path) -> dapd.DiffusionLM:
    return dapd.load(folder, device="cpu")


def plan(model: dapd.DiffusionLM, *specs: str, **changes: int) -> Comparison:
    chosen = [d for spec in specs for d in decoders(spec)]
    return Comparison(model, chosen, [get("copy"), get("latin")], **{"prompts": 5, "batch": 2, **changes})


def test_a_sweep_is_every_combination() -> None:
    found = decoders("dapd-direct:tau_min=0.01/0.02,layers=1.0/2+3,block_length=8")
    assert [d.label for d in found][:2] == [
        "dapd-direct tau_min=0.01 layers=1.0 block_length=8",
        "dapd-direct tau_min=0.01 layers=2+3 block_length=8",
    ]
    assert len(found) == 4
    assert found[1].setting.strategy.layers == (2, 3)
    assert all(d.options.block_length == 8 for d in found)


@pytest.mark.parametrize("spec", ["nope", "fast-dllm:threshold", "fast-dllm:treshold=0.5", "fast-dllm:threshold=2"])
def test_bad_sweeps_are_refused(spec: str) -> None:
    with pytest.raises(DapdError):
        decoders(spec)


def test_a_killed_run_goes_on_and_ends_the_same(model: dapd.DiffusionLM, tmp_path: Path) -> None:
    specs = ("fast-dllm:threshold=0.3/0.9", "control-shuffled")
    whole = plan(model, *specs).run(tmp_path / "a")
    plan(model, *specs).run(tmp_path / "b")
    lines = (tmp_path / "b" / "results.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "b" / "results.jsonl").write_text("".join(lines[:7]) + lines[7][:20])
    again = plan(model, *specs).run(tmp_path / "b")
    key = [(r.decoder, r.task, r.example, r.score, r.nfe, r.tokens) for r in whole]
    assert sorted(key) == sorted((r.decoder, r.task, r.example, r.score, r.nfe, r.tokens) for r in again)
    assert len(key) == 3 * 2 * 5


def test_what_is_there_is_not_decoded_again(model: dapd.DiffusionLM, tmp_path: Path) -> None:
    plan(model, "fast-dllm").run(tmp_path)
    before = (tmp_path / "results.jsonl").read_bytes()
    plan(model, "fast-dllm").run(tmp_path)
    assert (tmp_path / "results.jsonl").read_bytes() == before
    plan(model, "fast-dllm", "original").run(tmp_path)
    assert (tmp_path / "results.jsonl").read_bytes().startswith(before)


def test_another_setup_and_damage_are_refused(model: dapd.DiffusionLM, tmp_path: Path) -> None:
    plan(model, "fast-dllm").run(tmp_path)
    with pytest.raises(DapdError, match="prompts: 5 there, 6 here"):
        plan(model, "fast-dllm", prompts=6).run(tmp_path)
    path = tmp_path / "results.jsonl"
    damaged = "not json\n" + path.read_text()
    path.write_text(damaged)
    with pytest.raises(DapdError, match="line 1"):
        read_results(tmp_path)
    assert path.read_text() == damaged


def test_batches_do_not_change_results(model: dapd.DiffusionLM, tmp_path: Path) -> None:
    specs = ("dapd-staged", "control-shuffled", "original:order=random")
    one = plan(model, *specs, batch=1).run(tmp_path / "a")
    five = plan(model, *specs, batch=5).run(tmp_path / "b")
    assert [(r.decoder, r.example, r.nfe) for r in one] == [(r.decoder, r.example, r.nfe) for r in five]


def row(score: float, nfe: float, tpf: float = 1.0, family: str = "x") -> Row:
    return Row("t", family, f"{family}{score}{nfe}", 10, score, score, score, nfe, tpf, 0.1)


def test_pareto_and_fewest() -> None:
    rows = [row(90, 30), row(95, 40), row(80, 35), row(95, 50), row(50, 10)]
    assert [(r.score, r.nfe) for r in pareto(rows)] == [(50, 10), (90, 30), (95, 40)]
    assert fewest_at(rows, 90).nfe == 30
    assert fewest_at(rows, 96) is None


def test_area_under_parallelism_by_hand() -> None:
    rows = [row(80, 1, tpf=1.0), row(78, 1, tpf=2.0), row(60, 1, tpf=3.0)]
    a, b = 80 * math.exp(-3 * 0.2), 78 * math.exp(-3 * 0.22)
    assert parallelism(rows, 100.0) == pytest.approx((a + b) / 2)
    assert parallelism(rows[:1], 100.0) is None


def test_interval_covers_the_mean_and_shrinks() -> None:
    wide, narrow = (interval(torch.tensor([0.0, 100.0] * n, dtype=torch.float64)) for n in (5, 500))
    assert wide[0] < 50 < wide[1]
    assert narrow[1] - narrow[0] < (wide[1] - wide[0]) / 5


def test_summary_means() -> None:
    results = [Result("a", "a", "t", i, score, nfe, 10, 1.0) for i, (score, nfe) in enumerate([(1, 10), (0, 20)])]
    [found] = summarise(results)
    assert (found.score, found.nfe, found.tokens_per_forward) == (50.0, 15.0, 20 / 30)


def test_auc_by_counting() -> None:
    scores, positive = torch.tensor([0.1, 0.4, 0.4, 0.9, 0.2]), torch.tensor([False, True, False, True, False])
    wins = sum((a > b) + (a == b) / 2 for a in scores[positive].tolist() for b in scores[~positive].tolist())
    assert auc(scores, positive) == pytest.approx(wins / 6)


def test_edge_auc_of_every_layer(model: dapd.DiffusionLM) -> None:
    found = edge_auc(model, get("latin"), [(0,), (1, 2)], n=3, masked=0.5)
    assert [f.layers for f in found] == [(0,), (1, 2)]
    assert all(0 <= f.auc <= 1 and f.pairs > 10 for f in found)


def test_the_command_writes_table_json_and_figure(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    args = ["compare", "-m", str(folder), "-t", "copy,latin", "-p", "3", "--out", str(out), "-s", "original:k=8"]
    result = CliRunner().invoke(app, [*args, "-s", "dapd-direct:tau_max=0.1/0.5"], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    assert "dapd-direct tau_max=0.5" in result.output
    assert len(json.loads((out / "summary.json").read_text())["rows"]) == 6
    assert (out / "tradeoff.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("args", "said"),
    [(["-t", "cpy"], "did you mean 'copy'"), (["-s", "dapd"], "unknown strategy"), (["-p", "0"], "at least 1")],
)
def test_mistakes(args: list[str], said: str, folder: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["compare", "-m", str(folder), "--out", str(tmp_path / "o"), *args])
    assert isinstance(result.exception, DapdError)
    assert said in str(result.exception)
    assert not (tmp_path / "o").exists()
