"""Several processes give what one gives, whichever of them is killed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dapd.cli.app import app
from dapd.decoding import Step
from dapd.errors import DapdError
from dapd.scale.batch import parts_of
from dapd.scale.on_ray import Seat
from dapd.scale.recipe import Recipe
from dapd.scale.team import Spread, SpreadLM
from dapd.scale.work import Call, Failure
from dapd.scale.workers import STARTS, STRIKES, Processes, devices
from dapd.trace import Recorder
from scale.jobs import (
    MODEL,
    RECIPE,
    Deadly,
    batch,
    command,
    killed_after,
    length_of,
    results,
    rows_of,
    wait_until_gone,
    write_prompts,
)


def plain(outcomes: dict[int, Any]) -> dict[int, Any]:
    """Outcomes without what depends on the clock."""
    return {number: {k: v for k, v in record.items() if k != "seconds"} for number, record in outcomes.items()}


@pytest.mark.slow
def test_whoever_dies_there_is_one_outcome_for_every_ask(tmp_path: Path) -> None:
    rows = rows_of(write_prompts(tmp_path / "in.jsonl", 60))
    worker = RECIPE.worker()
    alone = plain(dict(worker.outcomes(rows)))
    told: list[str] = []
    with Processes(RECIPE.for_workers_of(worker.lm), 2, told.append) as processes:
        found = []
        for outcome in processes.outcomes(rows):
            found.append(outcome)
            if len(found) == 5:
                processes.members[0].process.kill()
        assert len(told) == 1
        assert "a worker died (exit code -9)" in told[0]
        assert len(found) == len(rows), "each of them once"
        assert plain(dict(found)) == alone
        # The worker that got the deadly ask had others at hand: they are done by the next, and it alone is given up.
        mixed: list[Any] = [*rows[:12], Deadly(), *(Call(length_of, "x" * n) for n in (3, 5))]
        outcomes = dict(processes.outcomes(mixed))
        assert outcomes.pop(12) == Failure(f"{STRIKES} workers died on this text, one after the other")
        assert [outcomes.pop(number)[0] for number in (13, 14)] == [f"{MODEL}: {n} tokens" for n in (3, 5)]
        assert plain(outcomes) == {number: alone[number] for number in range(12)}
        assert len(told) == 1 + STRIKES


def test_workers_that_die_before_they_are_ready_end_the_job_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import os; os._exit(7)")
    recipe = replace(RECIPE, paths=(str(tmp_path),))
    said = f"{STARTS} workers ended before they were ready, the last with exit code 7"
    with Processes(recipe, 1) as processes, pytest.raises(DapdError, match=said):
        list(processes.outcomes([Deadly()]))


def test_workers_import_what_their_leader_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "random.py").write_text(
        "raise RuntimeError('a script of the user that is called like a module of Python')"
    )
    monkeypatch.chdir(tmp_path)
    with Processes(RECIPE, 1) as processes:
        [(_, found)] = processes.outcomes([Call(length_of, "xxx")])
    assert found[0] == f"{MODEL}: 3 tokens"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_leader_takes_a_model_of_ones_own_as_it_is(device: str) -> None:
    """Its function lets nobody choose a dtype, and its workers do not, either."""
    path = Path(__file__).parents[2] / "examples" / "my_model.py"
    assert Recipe(f"{path}:letters").here(device).network.device.type == "cpu"


@pytest.mark.slow
def test_what_a_worker_refuses_is_told_as_it_is() -> None:
    """The job ends with a reason; on a cluster a seat hands it over as a value, for the driver to say."""
    seat = Seat(replace(RECIPE, weights="others"))
    with seat.processes:
        [(number, error)] = seat.outcomes([(7, b"\x80\x04N.")])
    assert number == 7
    assert isinstance(error, DapdError)
    assert f"this worker has other weights of {MODEL}" in str(error)


def test_a_text_that_cannot_be_told_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a pass in its middle: a tokenizer of the user's own may not know what the model wrote."""
    rows = rows_of(write_prompts(tmp_path / "in.jsonl", 3))
    worker = RECIPE.worker()
    alone = plain(dict(worker.outcomes(rows)))
    add = Recorder.add

    def fails(recorder: Recorder, step: Step) -> None:
        if step.row == 1 and step.index == 1:
            raise KeyError("no such token")
        add(recorder, step)

    monkeypatch.setattr(Recorder, "add", fails)
    found = dict(worker.outcomes(rows))
    failed = found.pop(1)
    assert isinstance(failed, Failure)
    assert "no such token" in failed.reason
    assert plain(found) == {0: alone[0], 2: alone[2]}
    assert not worker.busy


def test_a_gpu_for_each_where_there_are_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert devices("cpu", 2) == ["cpu", "cpu"]
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert devices(None, 2) == ["cpu", "cpu"]
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert devices(None, 3) == ["cuda:0", "cuda:1", "cuda:0"]
    assert devices("cuda:1", 2) == ["cuda:1", "cuda:1"]


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"patience": 0.0}])
def test_spreads_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(DapdError, match=next(iter(wrong))):
        Spread(**wrong)


def test_a_failure_ends_an_evaluation() -> None:
    class Failing:
        def outcomes(self, asks: Any) -> Any:
            return iter([(0, Failure("no room"))])

    lm = SpreadLM(RECIPE.load(), Failing())
    with pytest.raises(DapdError, match="no room"):
        lm.generate("x", max_new_tokens=4)
    with pytest.raises(DapdError, match="keep to a form"):
        lm.generate("x", max_new_tokens=4, on_step=lambda step: None)


@pytest.mark.slow
def test_a_killed_job_ends_in_the_same_file(tmp_path: Path) -> None:
    n = 200
    source, output = write_prompts(tmp_path / "in.jsonl", n), tmp_path / "out.jsonl"
    kept = parts_of(output) / "results.jsonl"
    workers = killed_after(n // 10, command(source, output, "--workers", "2"), kept)
    assert len(workers) >= 2
    wait_until_gone(workers)
    assert not output.exists()
    before = kept.read_bytes().rpartition(b"\n")[0]
    assert before.count(b"\n") < n - 1, "it was killed half-way"
    done = batch(source, output)  # by one process, which takes over from two
    assert done.exit_code == 0, done.output
    assert kept.read_bytes().startswith(before), "what was done is not done again"
    ids = [json.loads(line)["id"] for line in kept.read_text().splitlines()]
    assert len(ids) == len(set(ids)) == n
    assert batch(source, tmp_path / "alone.jsonl").exit_code == 0
    assert results(output) == results(tmp_path / "alone.jsonl")


@pytest.mark.slow
def test_comparisons_with_two_workers_give_the_table_of_one(tmp_path: Path) -> None:
    def rows(name: str, *more: str) -> Any:
        chosen = ["-s", "dapd-direct:tau_min=0.01/0.02", "-t", "shuffle", "-p", "3", "--no-plot"]
        done = CliRunner().invoke(app, ["compare", *chosen, "--device", "cpu", "--out", str(tmp_path / name), *more])
        assert done.exit_code == 0, done.output
        found = json.loads((tmp_path / name / "summary.json").read_text())
        return found["setup"], [{k: v for k, v in row.items() if k != "seconds"} for row in found["rows"]]

    assert rows("two", "--workers", "2") == rows("one")


@pytest.mark.parametrize("table", ["tau_min", "toy"])
def test_tables_of_the_paper_that_one_process_makes(table: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["paper", "-t", table, "--workers", "2", "--out", str(tmp_path)])
    assert "made in one process" in str(done.exception)


def test_torchrun_and_workers_are_one_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = CliRunner().invoke(app, ["compare", "--workers", "2", "--out", str(tmp_path)])
    assert "torchrun divides the work already" in str(done.exception)
