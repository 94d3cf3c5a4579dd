"""`python experiments/scale_batch.py`: the same prompts by one process, by two, and by a Ray cluster of three nodes of
which one is killed in the middle. Every route must give the texts of the first; the last line is JSON.

The times are of one machine whose cores all workers share: they show what starting and moving costs, not what more
machines bring.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from dapd.cli import run
from dapd.decoding import Options
from dapd.errors import DapdError
from dapd.scale import batch
from dapd.scale.recipe import Recipe
from dapd.scale.team import Spread, gathered
from dapd.settings import as_setting

STARTING = 300.0
"""Seconds that the nodes may take to start."""


@contextmanager
def three_nodes() -> Iterator[Any]:
    """Start a head and two more nodes on this machine, with one CPU each."""
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        for _ in range(2):
            nodes.add_node(num_cpus=1)
        nodes.wait_for_nodes(timeout=STARTING)
        yield nodes
    finally:
        nodes.shutdown()


def scale_batch(
    prompts: Annotated[int, typer.Option(help="Rows of the job.")] = 500,
    model: Annotated[str, typer.Option("--model", "-m", help="A model that reads any text.")] = "random:tiny-llada",
    tokens: Annotated[int, typer.Option("--max-new-tokens", "-n", help="New tokens of each row.")] = 16,
    strategy: Annotated[str, typer.Option("--strategy", "-s", help="See `dapd strategies`.")] = "dapd-direct",
) -> None:
    """Run one job by every route and compare the results."""
    plan = batch.Plan(as_setting(strategy), tokens, Options(early_stop=True))
    recipe = Recipe(model, device="cpu")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "in.jsonl"
        lines = [{"id": f"q{n}", "prompt": f"question {n}"} for n in range(prompts)]
        source.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        rows = batch.read_rows(source, plan)

        def job(route: str, spread: Spread, look_on: Callable[[int], None] = lambda n: None) -> dict[str, Any]:
            began = time.perf_counter()
            output = folder / f"{route}.jsonl"
            with gathered(recipe, spread, in_one=True) as team:
                records = batch.run(rows, plan, team, output, look_on)
            kept = [json.loads(line)["id"] for line in (batch.parts_of(output) / "results.jsonl").open()]
            results = [{k: v for k, v in one.items() if k != "seconds"} for one in records]
            seconds = time.perf_counter() - began
            print(f"{route}: {len(set(kept))} of {prompts} results, {len(kept)} kept, {seconds:.1f} s", flush=True)
            return {"results": results, "kept": len(kept), "different": len(set(kept)), "seconds": round(seconds, 1)}

        found = {"one process": job("one process", Spread()), "two processes": job("two processes", Spread(2))}
        with three_nodes() as nodes:
            done = 0
            lost: list[Any] = []

            def look_on(n: int) -> None:
                nonlocal done
                done += n
                if done >= prompts // 4 and not lost:
                    lost.append(nodes.worker_nodes.copy().pop())
                    nodes.remove_node(lost[0], allow_graceful=False)
                    print(f"a node is killed after {done} results", flush=True)

            spread = Spread(3, address=nodes.address)
            found["three nodes, one killed"] = job("three nodes, one killed", spread, look_on)
    first = found["one process"]["results"]
    figures = {
        route: {"identical": one.pop("results") == first, **one, "rows_per_second": round(prompts / one["seconds"], 1)}
        for route, one in found.items()
    }
    print(json.dumps({"prompts": prompts, "cpus": os.cpu_count(), "routes": figures}))
    if not all(one["identical"] and one["kept"] == one["different"] == prompts for one in figures.values()):
        raise DapdError("the routes do not agree")


if __name__ == "__main__":
    run(scale_batch)
