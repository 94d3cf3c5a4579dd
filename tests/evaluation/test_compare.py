"""The comparison: what is decoded, kept, resumed, refused and summed up; the model is a tiny random one."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import dapd
from dapd.cli.app import app
from dapd.errors import DapdError
from dapd.evaluation.compare import Comparison, Result, decoders, read_results
from dapd.evaluation.edges import auc, edge_auc
from dapd.evaluation.file_task import FileTask
from dapd.evaluation.summary import Row, interval, parallelism, pareto, summarise
from dapd.lab.checkpoint import export, network_config
from dapd.lab.settings import TrainSettings
from dapd.lab.tasks import get
from dapd.lab.tokenizer import LabTokenizer
from dapd.settings import Setting
from dapd.strategies import Threshold


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
    return Comparison(model, chosen, [get("shuffle"), get("latin")], **{"prompts": 3, "batch": 2, **changes})


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


def test_values_with_commas_between_them_are_told_of_the_slash() -> None:
    with pytest.raises(DapdError, match=r"'0\.9' is not of the form .* separated by /: threshold=0\.7/0\.9$"):
        decoders("fast-dllm:threshold=0.7,0.9")


def test_a_killed_run_goes_on_and_ends_the_same(model: dapd.DiffusionLM, tmp_path: Path) -> None:
    specs = ("fast-dllm:threshold=0.3/0.9", "control-shuffled")
    whole = plan(model, *specs).run(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    lines = (tmp_path / "b" / "results.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "b" / "results.jsonl").write_text("".join(lines[:5]) + lines[5][:20])
    again = plan(model, *specs).run(tmp_path / "b")
    key = [(r.decoder, r.task, r.example, r.score, r.nfe, r.tokens) for r in whole]
    assert sorted(key) == sorted((r.decoder, r.task, r.example, r.score, r.nfe, r.tokens) for r in again)
    assert len(key) == 3 * 2 * 3


def test_what_is_there_is_not_decoded_again(model: dapd.DiffusionLM, tmp_path: Path) -> None:
    plan(model, "fast-dllm").run(tmp_path)
    before = (tmp_path / "results.jsonl").read_bytes()
    plan(model, "fast-dllm").run(tmp_path)
    assert (tmp_path / "results.jsonl").read_bytes() == before
    plan(model, "fast-dllm", "original").run(tmp_path)
    assert (tmp_path / "results.jsonl").read_bytes().startswith(before)


def test_prompts_that_are_not_there_leave_no_set_up(model: dapd.DiffusionLM, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "a", "answer": "b"}\n')
    task, chosen, out = FileTask(path, 4), decoders("original"), tmp_path / "out"
    with pytest.raises(DapdError, match="give --prompts 1"):
        Comparison(model, chosen, [task], prompts=2).run(out)
    assert len(Comparison(model, chosen, [task], prompts=1).run(out)) == 1


def test_a_run_that_came_to_no_result_is_in_nobodys_way(
    model: dapd.DiffusionLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Comparison, "_decode", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            plan(model, "fast-dllm").run(tmp_path)
    assert len(plan(model, "fast-dllm", prompts=1).run(tmp_path)) == 2


def test_another_setup_and_damage_are_refused(model: dapd.DiffusionLM, tmp_path: Path) -> None:
    plan(model, "fast-dllm").run(tmp_path)
    with pytest.raises(DapdError, match="prompts: 3 there, 4 here"):
        plan(model, "fast-dllm", prompts=4).run(tmp_path)
    path = tmp_path / "results.jsonl"
    damaged = "not json\n" + path.read_text()
    path.write_text(damaged)
    with pytest.raises(DapdError, match="line 1"):
        read_results(tmp_path)
    assert path.read_text() == damaged


def test_another_dtype_and_other_weights_of_the_same_name_are_refused(folder: Path, tmp_path: Path) -> None:
    plan(dapd.load(folder, device="cpu"), "fast-dllm").run(tmp_path)
    before = (tmp_path / "results.jsonl").read_bytes()
    half = dapd.load(folder, device="cpu", dtype=torch.bfloat16)
    with pytest.raises(DapdError, match=r"weights: .* float32' there, .* bfloat16' here"):
        plan(half, "fast-dllm").run(tmp_path)
    other = dapd.load(folder, device="cpu")
    with torch.no_grad():
        list(other.network.parameters())[-1].view(-1)[-1] += 1  # type: ignore[attr-defined]
    with pytest.raises(DapdError, match="weights: "):
        plan(other, "fast-dllm").run(tmp_path)
    assert (tmp_path / "results.jsonl").read_bytes() == before


def test_another_decoder_under_the_same_label_is_refused(model: dapd.DiffusionLM, tmp_path: Path) -> None:
    [known] = decoders("fast-dllm")
    task = [get("latin")]
    Comparison(model, [known], task, prompts=2).run(tmp_path)
    for setting, options in (
        (Setting(Threshold(0.3)), known.options),
        (Setting(known.setting.strategy, n_blocks=2), known.options),
        (known.setting, replace(known.options, early_stop=True)),
    ):
        same_label = replace(known, setting=setting, options=options)
        with pytest.raises(DapdError, match=r"'fast-dllm', 'latin', 0.* another text or with other settings"):
            Comparison(model, [same_label], task, prompts=2).run(tmp_path)


def test_the_blocks_of_a_setting_of_the_paper_are_kept(model: dapd.DiffusionLM, tmp_path: Path) -> None:
    """With a bar that nothing reaches, every pass decides one token; blocks then decide in which order."""
    specs = ["fast-dllm", "fast-dllm@llada/humaneval:n_blocks=1/4", "fast-dllm:n_blocks=4"]
    chosen = [d for spec in specs for d in decoders(spec)]
    assert [d.setting.with_blocks(d.options).n_blocks for d in chosen] == [1, 1, 4, 4]
    windows: dict[str, set[int]] = {}
    complete = model.complete

    def watch(canvases: Any, **more: Any) -> Any:
        lengths = windows.setdefault(len(windows), set())  # type: ignore[call-overload]
        return complete(canvases, **more, watchers=[lambda step: lengths.add(step.window.stop - step.window.start)])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "complete", watch)
        Comparison(model, chosen, [get("latin")], prompts=1).run(tmp_path)
    room = get("latin").room
    assert list(windows.values()) == [{room}, {room}, {room // 4}, {room // 4}]


def test_what_is_named_twice_is_refused(model: dapd.DiffusionLM) -> None:
    with pytest.raises(DapdError, match="the decoder 'fast-dllm' is named twice"):
        plan(model, "fast-dllm", "original", "fast-dllm")
    with pytest.raises(DapdError, match="the task 'latin' is named twice"):
        Comparison(model, decoders("original"), [get("latin"), get("latin")])


def test_the_seed_belongs_to_the_comparison() -> None:
    with pytest.raises(DapdError, match="seed of the comparison"):
        decoders("original:order=random,seed=1/2")


def test_rows_that_two_processes_left_count_once(model: dapd.DiffusionLM, tmp_path: Path) -> None:
    """Processes that were started twice in one folder both read it while it was empty."""
    once = plan(model, "fast-dllm").run(tmp_path)
    path = tmp_path / "results.jsonl"
    path.write_text(path.read_text() * 3)
    assert plan(model, "fast-dllm").run(tmp_path) == once
    assert sorted(read_results(tmp_path), key=str) == sorted(once, key=str)
    assert [row.prompts for row in summarise(once)] == [3, 3]


def test_batches_do_not_change_results(model: dapd.DiffusionLM, tmp_path: Path) -> None:
    specs = ("dapd-staged", "control-shuffled", "original:order=random")
    one = plan(model, *specs, batch=1).run(tmp_path / "a")
    three = plan(model, *specs, batch=3).run(tmp_path / "b")
    assert [(r.decoder, r.example, r.nfe) for r in one] == [(r.decoder, r.example, r.nfe) for r in three]


def row(score: float, nfe: float, tpf: float = 1.0, family: str = "x") -> Row:
    return Row("t", family, f"{family}{score}{nfe}", 10, score, score, score, nfe, tpf, 0.1)


def test_the_front_leaves_out_what_is_worse_and_slower() -> None:
    rows = [row(90, 30), row(95, 40), row(80, 35), row(95, 50), row(50, 10)]
    assert [(r.score, r.nfe) for r in pareto(rows)] == [(50, 10), (90, 30), (95, 40)]


def test_equal_rows_are_all_on_the_front() -> None:
    rows = [row(95, 40, family="a"), row(95, 40, family="b"), row(95, 41, family="c"), row(94, 40, family="d")]
    assert [r.family for r in pareto(rows)] == ["a", "b"]


def test_area_under_parallelism_by_hand() -> None:
    rows = [row(80, 1, tpf=2.0), row(78, 1, tpf=3.0), row(60, 1, tpf=4.0)]
    a, b = 80 * math.exp(-3 * 0.2), 78 * math.exp(-3 * 0.22)
    assert parallelism(rows, 100.0) == pytest.approx(2 * 80 + (a + b) / 2)
    assert parallelism(rows[:1], 100.0) == 2 * 80
    assert parallelism([row(0, 1)], 0.0) == 0


def test_a_decoder_that_is_right_in_one_pass_has_an_area() -> None:
    rows = [row(100, 1, tpf=32.0), row(100, 1, tpf=32.0)]
    assert parallelism(rows, 100.0) == 3200
    assert parallelism(rows, 100.0) > parallelism([row(100, 1, tpf=1.0), row(100, 1, tpf=16.0)], 100.0)


def test_intervals_hold_at_the_edges() -> None:
    """Wilson's interval, by hand: 10 of 10 lie above 72.2%; one of one tells nearly nothing."""
    assert interval(1.0, 10) == (pytest.approx(0.722467, abs=1e-5), 1.0)
    assert interval(0.0, 10) == (0.0, pytest.approx(0.277533, abs=1e-5))
    assert interval(0.5, 100) == (pytest.approx(0.403832, abs=1e-5), pytest.approx(0.596168, abs=1e-5))
    low, high = interval(1.0, 1)
    assert (low < 0.25, high) == (True, 1.0)


def test_intervals_cover_what_they_say() -> None:
    """Over all outcomes of ten prompts, weighted by how likely they are, the truth lies inside about as often as it
    should. An interval by resampling covers 65% where one prompt in ten goes wrong."""
    for truth in (0.02, 0.1, 0.3, 0.5, 0.9):
        outcomes = [(k, math.comb(10, k) * truth**k * (1 - truth) ** (10 - k)) for k in range(11)]
        covered = sum(p for k, p in outcomes if interval(k / 10, 10)[0] <= truth <= interval(k / 10, 10)[1])
        assert covered > 0.88, truth


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
    args = ["compare", "-m", str(folder), "-t", "shuffle,latin", "-p", "3", "--out", str(out), "-s", "original:k=8"]
    files = [tmp_path / "table.csv", tmp_path / "table.tex"]
    args += [text for path in files for text in ("--save-table", str(path))]
    result = CliRunner().invoke(app, [*args, "-s", "dapd-direct:tau_max=0.1/0.5"], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    assert "dapd-direct tau_max=0.5" in result.output
    lines = files[0].read_text().splitlines()
    assert lines[0] == "task,decoder,front,prompts,score %,95%,passes,per pass,seconds,AUP"
    assert [line.split(",")[0] for line in lines[1:]] == ["shuffle"] * 3 + ["latin"] * 3
    assert all(line.split(",")[4] in result.output for line in lines[1:])
    assert "dapd-direct tau\\_max=0.5" in files[1].read_text()
    assert len(json.loads((out / "summary.json").read_text())["rows"]) == 6
    assert (out / "tradeoff.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_there_is_a_table_and_a_word(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dapd.cli.compare.has_matplotlib", lambda: False)
    args = ["compare", "-m", str(folder), "-t", "latin", "-p", "1", "-s", "fast-dllm", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, args, env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    assert "no figure: drawing figures needs the package 'matplotlib'" in result.output
    assert (tmp_path / "summary.json").is_file()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk(model: dapd.DiffusionLM, tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").symlink_to("/dev/full")
    (tmp_path / "setup.json").write_text(json.dumps(plan(model, "fast-dllm").setup()))
    with pytest.raises(DapdError, match=r"cannot write .*results.jsonl: No space left on device"):
        plan(model, "fast-dllm").run(tmp_path)


def test_what_cannot_be_written_is_refused_before_the_work(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Comparison, "run", lambda *_: pytest.fail("the work had begun"))
    (tmp_path / "tradeoff.png").mkdir()
    result = CliRunner().invoke(app, ["compare", "-m", str(folder), "-t", "latin", "--out", str(tmp_path)])
    assert "tradeoff.png: it is a folder" in str(result.exception)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["-t", "latn"], "did you mean 'latin'"),
        (["-s", "dapd"], "unknown strategy"),
        (["-p", "0"], "at least 1"),
        (["--save-table", "a.xls"], "tables are written as .csv, .tex or .md"),
    ],
)
def test_mistakes(args: list[str], said: str, folder: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["compare", "-m", str(folder), "--out", str(tmp_path / "o"), *args])
    assert isinstance(result.exception, DapdError)
    assert said in str(result.exception)
    assert not (tmp_path / "o").exists()
