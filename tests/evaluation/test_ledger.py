"""Results by key: what is missing is made, what is there is kept, and nothing answers for something else."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dapd.errors import DapdError
from dapd.evaluation.ledger import Job, Ledger, digest
from dapd.evaluation.runs import Record, Run
from dapd.evaluation.world import World


def key(record: Record) -> Any:
    return record["key"]


def jobs(*numbers: int) -> list[Job[int]]:
    return [Job(f"q{n}", digest(n), n) for n in numbers]


def squares(asked: list[Job[int]]) -> Iterator[Record]:
    for job in reversed(asked):  # results come in any order
        yield {"key": job.key, "digest": job.digest, "square": job.what**2}


def values(records: list[Record]) -> list[int]:
    return [record["square"] for record in records]


def test_what_is_missing_is_made_and_kept(tmp_path: Path) -> None:
    run = Run.open(tmp_path, {})
    steps: list[int] = []
    assert values(Ledger(run, key).fill(jobs(3, 1, 2), squares, steps.append)) == [9, 1, 4]
    assert steps == [0, 1, 1, 1]
    steps.clear()
    assert values(Ledger(run, key).fill(jobs(1, 2, 3, 4), squares, steps.append)) == [1, 4, 9, 16]
    assert steps == [3, 1]
    assert len(run.records()) == 4
    assert len((tmp_path / "environment.jsonl").read_text().splitlines()) == 2
    Ledger(run, key).fill(jobs(1, 2), lambda _: pytest.fail("nothing was missing"))
    assert len((tmp_path / "environment.jsonl").read_text().splitlines()) == 2


def test_without_a_folder_it_remembers() -> None:
    ledger = Ledger(None, key)
    assert values(ledger.fill(jobs(2), squares)) == [4]
    assert values(ledger.fill(jobs(2), lambda _: pytest.fail("it is there"))) == [4]


def test_a_kill_loses_nothing_that_was_made(tmp_path: Path) -> None:
    def killed(asked: list[Job[int]]) -> Iterator[Record]:
        yield next(squares(asked))
        raise KeyboardInterrupt

    run = Run.open(tmp_path, {})
    with pytest.raises(KeyboardInterrupt):
        Ledger(run, key).fill(jobs(1, 2), killed)
    assert [record["key"] for record in run.records()] == ["q2"]


def test_the_first_of_several_counts(tmp_path: Path) -> None:
    run = Run.open(tmp_path, {})
    first, second = ({"key": "q2", "digest": digest(2), "square": value} for value in (4, 5))
    run.append([first, second])
    assert values(Ledger(run, key).fill(jobs(2), squares)) == [4]


def test_an_answer_to_something_else_is_refused(tmp_path: Path) -> None:
    run = Run.open(tmp_path, {})
    Ledger(run, key).fill(jobs(2), squares)
    before = (tmp_path / "results.jsonl").read_bytes()
    with pytest.raises(DapdError, match="the result kept for q2 was made for another text"):
        Ledger(run, key).fill([Job("q2", digest("two"), 2)], squares)
    assert (tmp_path / "results.jsonl").read_bytes() == before


@pytest.mark.parametrize("record", [{"key": "q1"}, {"digest": "d"}])
def test_results_of_another_kind_are_refused(tmp_path: Path, record: Record) -> None:
    run = Run.open(tmp_path, {})
    run.append([record])
    with pytest.raises(DapdError, match="another kind"):
        Ledger(run, key)


def test_work_that_leaves_something_out_is_an_error() -> None:
    with pytest.raises(DapdError, match="no result for q1"):
        Ledger(None, key).fill(jobs(1, 2), lambda asked: list(squares(asked))[:1])


def test_processes_do_their_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = jobs(1, 2, 3, 4, 5)
    shares: list[list[int]] = []

    def work(mine: list[Job[int]]) -> Iterator[Record]:
        shares.append([job.what for job in mine])
        return squares(mine)

    all_of_it = list(squares(asked))
    monkeypatch.setattr(World, "gather", lambda self, mine: all_of_it)
    for rank in range(2):
        assert values(Ledger(None, key, World(rank, 2)).fill(asked, work)) == [1, 4, 9, 16, 25]
    assert shares == [[1, 3, 5], [2, 4]]
