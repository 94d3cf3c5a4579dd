import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from typer.testing import CliRunner

from dapd.cli.mrf import app, command_line
from dapd.errors import DapdError
from dapd.mrf import paper, storage
from dapd.mrf.evaluate import Budget
from dapd.mrf.metrics import SELECTIONS
from dapd.mrf.report import ReportOptions, build, rounded, write
from dapd.plots.toy import report_figures


def test_the_quick_report_on_the_shipped_model(tmp_path):
    began = time.process_time()  # a busy machine is not slow code
    result = CliRunner().invoke(app, ["report", "--quick", "--device", "cpu", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert time.process_time() - began < 30
    results = json.loads((tmp_path / "results.json").read_text())
    assert set(results["evaluation"]["selections"]) == set(SELECTIONS)
    assert results["evaluation"]["valid"] >= 0.99
    assert results["evaluation"]["selections"]["all"]["overall"]["auc"]["mean"] > 0.75
    for title in ("Overall", "By decoding step", "Layer selection", "Single heads", "Decoders"):
        assert title in result.output
    assert "0.928" in (tmp_path / "report.md").read_text()


def test_figures_need_matplotlib_alone(tmp_path, stack, monkeypatch):
    from dapd.mrf.network import Shape
    from dapd.mrf.recipe import Recipe

    run = storage.Run(Recipe(Shape(n_layers=4, width=16, n_heads=2)), stack)
    found = build(run, ReportOptions(Budget(4, 10), n_decoded=3, quick=True))
    assert [path.name for path in write(found, tmp_path)] == ["results.json", "report.md"]
    assert [path.name for path in report_figures(found, tmp_path)] == ["scores.png", "validity.png"]
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert report_figures(found, tmp_path) == []


def test_the_papers_overall_is_the_mean_of_its_steps():
    assert sum(step.auc for step in paper.STEPS) / 7 == pytest.approx(paper.OVERALL.auc, abs=1e-3)
    assert sum(step.ratio for step in paper.STEPS) / 7 == pytest.approx(paper.OVERALL.ratio, abs=1e-2)
    assert sum(step.ovr for step in paper.STEPS) / 7 == pytest.approx(paper.OVERALL.ovr, abs=1e-2)


def test_rounding_leaves_no_nan_in_the_json():
    assert rounded({"a": [1 / 3, float("nan"), 2]}) == {"a": [0.333333, None, 2]}


def test_a_folder_that_is_no_run_is_a_sentence(tmp_path):
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert isinstance(result.exception, DapdError)
    assert "not a run directory" in str(result.exception)


def test_a_command_is_reported_as_it_was_given(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/dapd", "mrf", "sweep", "--only", "w64-h4 twice"])
    assert command_line() == "dapd mrf sweep --only 'w64-h4 twice'"


def test_a_run_killed_in_the_middle_goes_on_and_ends_the_same(tmp_path):
    """A real kill: the process has no chance to tidy up."""
    flags = "--models 1 --width 16 --heads 2 --layers 2 --batch 8 --steps 300 --checkpoint-every 20 --device cpu"

    def command(name):
        return [sys.executable, "-m", "dapd", "mrf", "train", "--out", str(tmp_path / name), *flags.split()]

    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command("run"), env=environment, stdout=subprocess.DEVNULL)
    checkpoint = tmp_path / "run" / "checkpoint.pt"
    while not checkpoint.exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not storage.is_finished(tmp_path / "run")
    with pytest.raises(DapdError, match="has not finished"):
        storage.load_run(tmp_path / "run")
    for name in ("run", "whole"):
        result = CliRunner().invoke(app, command(name)[4:])
        assert result.exit_code == 0, result.output
    killed, whole = (storage.load_run(tmp_path / name).network.state_dict() for name in ("run", "whole"))
    assert all(torch.equal(killed[name], whole[name]) for name in whole)
