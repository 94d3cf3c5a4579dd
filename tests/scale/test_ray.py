"""A Ray cluster on this machine gives what one process gives, whoever of it is killed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from dapd.cli.app import app
from dapd.errors import DapdError
from dapd.scale.batch import parts_of, run
from dapd.scale.team import Spread, gathered
from dapd.scale.work import Call, Failure
from scale.jobs import (
    MODEL,
    PATIENCE,
    PLAN,
    RECIPE,
    Deadly,
    batch,
    command,
    killed_after,
    length_of,
    results,
    rows_of,
    write_prompts,
)

if TYPE_CHECKING:  # Ray is loaded by the tests, which one process runs, and not by each that collects them
    from ray._private.node import Node
    from ray.cluster_utils import Cluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="the ray extra is not installed"),
]

N = 240
"""Rows of the job in which the driver and then a node is killed: enough of them are left for either death."""


@pytest.fixture
def node(cluster: Cluster) -> Iterator[Node]:
    """One node more than the head."""
    node = cluster.add_node(num_cpus=1)
    yield node
    if node in cluster.worker_nodes:
        cluster.remove_node(node)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_prompts(tmp_path_factory.mktemp("source") / "in.jsonl", N)


@pytest.fixture(scope="module")
def alone(source: Path) -> list[dict[str, Any]]:
    """The results of one process."""
    output = source.with_name("alone.jsonl")
    assert batch(source, output).exit_code == 0
    return results(output)


def seats() -> Counter[str]:
    """How many workers live on each node."""
    import ray

    living = [one for one in ray._private.state.actors().values() if one["State"] == "ALIVE"]
    return Counter(one["Address"]["NodeID"] for one in living)


def test_workers_that_stay_answer_several_times_and_survive_a_deadly_text(cluster: Cluster, tmp_path: Path) -> None:
    """What evaluations run on: the same seats as actors, called again and again."""
    with gathered(RECIPE, Spread(2, address=cluster.address, patience=PATIENCE)) as team:
        first, second = [dict(team.lm.each(length_of, ["x", "xxx", "x" * n])) for n in (5, 7)]
        assert [first[n][0] for n in range(3)] == [f"{MODEL}: {n} tokens" for n in (1, 3, 5)]
        assert {process for _, process in first.values()} & {process for _, process in second.values()}, "they stayed"
        prompts = [f"question {n}" for n in range(9)]
        spread = team.lm.generate_batch(prompts, max_new_tokens=12, temperature=0.7, seed=5)
        here = RECIPE.load().generate_batch(prompts, max_new_tokens=12, temperature=0.7, seed=5)
        assert [(one.text, one.nfe) for one in spread] == [(one.text, one.nfe) for one in here]
        mixed = dict(team.crew.outcomes([Call(length_of, "x"), Deadly()]))
        assert mixed[0][0] == f"{MODEL}: 1 tokens"
        assert isinstance(mixed[1], Failure)
        assert "workers died on this text" in mixed[1].reason


def test_a_cluster_whose_cpus_are_all_taken_is_an_error_and_no_hang(
    cluster: Cluster, source: Path, tmp_path: Path
) -> None:
    import ray
    from ray.util import placement_group

    ray.init(address=cluster.address, log_to_driver=False)
    try:
        n = int(ray.cluster_resources()["CPU"])
        assert placement_group([{"CPU": 1}] * n).wait(timeout_seconds=PATIENCE), "somebody has all CPUs"
        done = batch(source, tmp_path / "out.jsonl", "--address", cluster.address, "--patience", "1")
        assert f"no result came from the cluster for 1 s (free there: 0 of {n} CPUs)" in str(done.exception)
        spread = Spread(1, address=cluster.address, patience=1)
        with gathered(RECIPE, spread) as team, pytest.raises(DapdError, match="no result came from the cluster"):
            list(team.crew.outcomes([Call(length_of, "x")]))
    finally:
        ray.shutdown()


def test_a_comparison_on_the_cluster_gives_the_table_of_one_process(cluster: Cluster, tmp_path: Path) -> None:
    def rows(name: str, *more: str) -> Any:
        chosen = ["-s", "fast-dllm:threshold=0.7/0.9", "-t", "shuffle", "-p", "4", "--no-plot", "--device", "cpu"]
        done = CliRunner().invoke(app, ["compare", *chosen, "--out", str(tmp_path / name), *more])
        assert done.exit_code == 0, done.output
        found = json.loads((tmp_path / name / "summary.json").read_text())
        return found["setup"], [{k: v for k, v in row.items() if k != "seconds"} for row in found["rows"]]

    assert rows("two", "--workers", "2", "--address", cluster.address) == rows("one")


def test_the_driver_is_killed_and_then_a_node_and_every_row_has_its_one_result(
    cluster: Cluster, node: Node, source: Path, alone: list[dict[str, Any]], tmp_path: Path
) -> None:
    from ray.util import placement_group, remove_placement_group

    output = tmp_path / "out.jsonl"
    kept = parts_of(output) / "results.jsonl"
    there = ["--address", cluster.address, "--workers", "2", "--patience", str(PATIENCE)]
    killed_after(N // 10, command(source, output, *there), kept)
    before = kept.read_bytes().rpartition(b"\n")[0]
    assert before.count(b"\n") < N - N // 5, "it was killed half-way"
    assert not output.exists()
    done, lost = 0, list[int]()

    def look_on(n: int) -> None:
        nonlocal done
        done += n
        if done >= before.count(b"\n") + N // 10 and not lost:
            lost.append(seats()[node.node_id])
            remove_placement_group(half)
            cluster.remove_node(node, allow_graceful=False)

    with gathered(RECIPE, Spread(2, address=cluster.address, patience=PATIENCE), in_one=True) as team:
        # Half of the head is taken, so that one of the two workers must go to the other node; later it can come back.
        half = placement_group([{"CPU": 0.5, "node:__internal_head__": 0.001}])
        assert half.wait(timeout_seconds=PATIENCE)
        run(rows_of(source), PLAN, team, output, look_on)
        assert lost[0] >= 1, "workers died with the node"
    assert kept.read_bytes().startswith(before), "what was done is not done again"
    ids = [json.loads(line)["id"] for line in kept.read_text().splitlines()]
    assert len(ids) == len(set(ids)) == N, "none is missing, and none was done twice"
    assert results(output) == alone


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:1"])
def test_no_cluster_at_the_address(address: str, source: Path, tmp_path: Path) -> None:
    done = batch(source, tmp_path / "out.jsonl", "--address", address)
    assert isinstance(done.exception, DapdError)
    assert f"no Ray cluster at {address}" in str(done.exception)
