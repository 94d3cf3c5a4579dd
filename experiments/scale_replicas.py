"""Two replicas of the lab model on Ray Serve against one, and against the decoder alone.

    OMP_NUM_THREADS=1 python experiments/scale_replicas.py --out replicas.json

Every replica computes on one thread. Each client waits for its answer before it asks again. Clients, Ray and replicas
share the machine: on two cores two replicas cannot be quite twice as fast, and any other work on it distorts the
result. With `--row-ms 11.75` replicas have a stand-in for a GPU: a tiny model that waits as long as an H200 is busy
with a pass of LLaDA-8B. That shows the cost of reaching the replicas where they do not compete for cores. The decoder
alone, one replica and two are measured in turn, `--rounds` times, and the fastest round of each counts. The last line
is JSON, which `scale_model.py --measured FILE` reads.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import torch

from dapd.cli import run
from dapd.decoding import Options
from dapd.decoding.sampling import EosPolicy, Sampling
from dapd.generation import DiffusionLM
from dapd.io.files import write_text
from dapd.io.table import Table
from dapd.io.wording import plural
from dapd.lab.tasks import get
from dapd.models import MaskedLM, Prediction
from dapd.scale.on_ray import Cluster, connected
from dapd.scale.recipe import Recipe
from dapd.scale.replicas import Fleet, running
from dapd.scale.team import Spread
from dapd.server import Config

TASK = "quiz-5"


@dataclass(frozen=True)
class Load:
    """The requests of the measurement: answers to prompts of five questions."""

    strategy: str
    tokens: int
    eos: EosPolicy
    requests: int
    clients: int
    """Number of concurrent requests; without a server, the number of rows that share a pass."""

    def prompts(self) -> list[str]:
        return [example.prompt for example in get(TASK).examples(self.requests)]


@dataclass(frozen=True)
class StandIn(Recipe):
    """A model whose passes take the time that a GPU would take, and leave the CPU to others."""

    row_ms: float = 0.0

    def load(self) -> DiffusionLM:
        lm = super().load()
        return DiffusionLM(Paced(lm.network, self.row_ms / 1000), lm.tokenizer, name=lm.name)


class Paced:
    """A network that sleeps before each pass, `seconds` for each row."""

    def __init__(self, network: MaskedLM, seconds: float) -> None:
        self.network, self.seconds = network, seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self.network, name)

    def __call__(self, tokens: torch.Tensor, *args: Any, **kwargs: Any) -> Prediction:
        time.sleep(self.seconds * len(tokens))
        return self.network(tokens, *args, **kwargs)


@dataclass(frozen=True)
class Measured:
    """The passes and the time that some requests took."""

    replicas: int
    """Number of replicas; 0: the decoder alone, without a server."""
    requests: int
    passes: int
    """Passes summed over all texts."""
    seconds: float

    @property
    def row_ms(self) -> float:
        """Milliseconds that one replica needs for one pass of one text."""
        return 1000 * self.seconds * max(1, self.replicas) / self.passes

    @property
    def rate(self) -> float:
        return self.requests / self.seconds


def alone(lm: DiffusionLM, load: Load) -> Measured:
    """Measure the decoder by itself: the cost of a pass of a text where nothing else runs."""
    prompts = [lm.question(prompt) for prompt in load.prompts()]
    options = Options(early_stop=True, sampling=Sampling(eos=load.eos))
    generate = partial(lm.generate_batch, strategy=load.strategy, max_new_tokens=load.tokens, options=options)
    generate(prompts[:2])  # warm-up
    began = time.perf_counter()
    done = generate(prompts, batch_size=load.clients)
    return Measured(0, len(done), sum(one.nfe for one in done), time.perf_counter() - began)


def served(replicas: int, load: Load, recipe: Recipe, config: Config, cluster: Cluster) -> Measured:
    """Measure the same requests through Ray Serve."""
    with (
        running(recipe, config, Fleet(replicas), cluster),
        httpx.Client(base_url=f"http://127.0.0.1:{config.port}", timeout=600) as client,
        ThreadPoolExecutor(load.clients) as pool,
    ):
        passes_of = partial(ask, client, recipe.model, load)
        list(pool.map(passes_of, load.prompts()[: 2 * load.clients]))  # warm-up
        began = time.perf_counter()
        passes = list(pool.map(passes_of, load.prompts()))
        return Measured(replicas, len(passes), sum(passes), time.perf_counter() - began)


def ask(client: httpx.Client, model: str, load: Load, prompt: str) -> int:
    """Ask for the answer to a prompt and give the passes that it took."""
    body = {"model": model, "max_tokens": load.tokens, "strategy": load.strategy, "eos": load.eos}
    if model == "lab":
        chat = {**body, "messages": [{"role": "user", "content": prompt}]}
        answer = client.post("/v1/chat/completions", json=chat)
    else:
        answer = client.post("/v1/completions", json={**body, "prompt": prompt})
    answer.raise_for_status()
    return int(answer.json()["usage"]["passes"])


def table(figures: Sequence[Measured]) -> Table:
    """Requests a second, and how much they are of the rate of the decoder alone times the number of replicas."""
    base = figures[0]
    rows = []
    for one in figures:
        expected = base.rate * base.passes / base.requests * one.requests / one.passes * max(1, one.replicas)
        who = plural(one.replicas, "replica") if one.replicas else "the decoder alone"
        numbers = (f"{one.rate:.3f}", f"{one.passes / one.requests:.1f}", f"{one.row_ms:.1f}")
        rows.append((who, *numbers, f"{one.rate / expected:.2f}"))
    return Table(("", "requests/s", "passes a request", "ms a pass and text", "of the expected rate"), rows)


def main(
    row_ms: float | None = None,
    requests: int = 48,
    clients: int = 16,
    rounds: int = 2,
    out: Path | None = None,
) -> None:
    """Measure the decoder alone, one replica and two."""
    torch.set_num_threads(1)
    # Ray gives its workers a low priority. Here they get that of the decoder alone, to compare the two.
    os.environ.setdefault("RAY_worker_niceness", "0")
    before = os.getloadavg()[0]
    if row_ms is None:
        load, recipe = Load("dapd-direct", get(TASK).room, "none", requests, clients), Recipe("lab", "cpu")
    else:
        load = Load("original", 45, "ban", requests, clients)
        recipe = StandIn("random:tiny-llada", "cpu", row_ms=row_ms)
    lm = recipe.load()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        config = Config(port=free.getsockname()[1])
    measured: list[Measured] = []
    with connected(Spread(ray=True)) as cluster:
        for replicas in (0, 1, 2) * rounds:
            measured.append(served(replicas, load, recipe, config, cluster) if replicas else alone(lm, load))
            print(measured[-1], file=sys.stderr, flush=True)
    figures = [min((m for m in measured if m.replicas == n), key=lambda m: m.seconds) for n in (0, 1, 2)]
    print(table(figures).to_markdown())
    content: dict[str, Any] = {
        "cpus": os.cpu_count(),
        "load_before": before,
        "row_ms": row_ms,
        **asdict(load),
        "figures": [asdict(one) for one in figures],
    }
    if out is not None:
        write_text(out, json.dumps(content) + "\n")
    print(json.dumps(content))


if __name__ == "__main__":
    run(main)
