"""The speed of the server's engine without its HTTP front end: requests per second and the time to the first text.

`python experiments/serving_engine.py --model random:llada-8b` keeps 1, 8 and 32 requests in flight, with and without
prefix reuse: whenever a text is finished, the next request comes in. With random weights DAPD chooses as it does but
commits at a fixed pace, so that every text takes the same number of passes; the first text is then whatever prefix
happens to be finished first, and the time of the first pass stands beside it.
"""

from __future__ import annotations

import queue
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from statistics import median

from dapd.bench.pace import Pace, Paced, random_canvases, with_set_of
from dapd.canvas import Canvas
from dapd.cli import run
from dapd.decoding import Options, Reuse
from dapd.generation import DiffusionLM, load
from dapd.io.table import Table
from dapd.models import Transformer
from dapd.models.devices import pick_dtype
from dapd.server.config import Limits
from dapd.server.engine import Engine
from dapd.server.jobs import Event, Failed, Finished, Job, Passed, Work
from dapd.strategies import Dapd


@dataclass(frozen=True)
class Load:
    """The requests of the measurement, whose prompts differ in length."""

    requests: int
    shortest: int
    longest: int
    gen: int
    passes: int
    block: int
    """Columns of a block where keys and values of the prefix are reused."""

    def canvases(self, lm: DiffusionLM) -> list[Canvas]:
        rng = random.Random(0)
        profile = lm.network.profile
        others = [token for token in range(min(1000, lm.network.vocab_size)) if token != profile.mask_id]
        lengths = [rng.randint(self.shortest, self.longest) for _ in range(self.requests)]
        return [Canvas.blank(rng.choices(others, k=n), self.gen, mask_id=profile.mask_id) for n in lengths]


@dataclass
class Watch:
    """The times at which a request came, had its first pass and its first text, and was finished."""

    came: float = field(default_factory=time.perf_counter)
    first_pass: float | None = None
    first_text: float | None = None
    finished: float | None = None

    def note(self, event: Event) -> None:
        now = time.perf_counter()
        if isinstance(event, Failed):
            raise RuntimeError(f"a request failed: {event.reason}")
        self.first_pass = self.first_pass or now
        if isinstance(event, Finished):
            self.finished = now
            self.first_text = self.first_text or now
        elif isinstance(event, Passed) and event.text:
            self.first_text = self.first_text or now


def drive(engine: Engine, works: list[Work], in_flight: int) -> tuple[float, list[Watch]]:
    """Send all requests, `in_flight` at a time; give the seconds that they took together, and the times of each."""
    events: queue.Queue[tuple[Watch, Event]] = queue.Queue()

    def send(work: Work) -> None:
        watch = Watch()
        engine.submit([Job(engine.lm, work, 0, lambda event: events.put((watch, event)), time.monotonic() + 3600)])

    waiting = iter(works)
    began = time.perf_counter()
    for work in islice(waiting, in_flight):
        send(work)
    done: list[Watch] = []
    while len(done) < len(works):
        watch, event = events.get(timeout=600)
        watch.note(event)
        if watch.finished is not None:
            done.append(watch)
            for work in islice(waiting, 1):
                send(work)
    return time.perf_counter() - began, done


def measure(lm: DiffusionLM, load: Load, kept: list[Reuse], flights: list[int]) -> Iterator[dict[str, object]]:
    network = lm.network
    assert isinstance(network, Transformer)
    canvases = load.canvases(lm)
    inner = with_set_of(network, random_canvases(network, load.shortest, load.gen), Dapd(), load.gen // 45 or 1)
    strategy = Paced(inner, Pace(steps=load.passes))
    for reuse in kept:
        blocks = None if reuse is Reuse.NONE else load.block
        options = Options(reuse=reuse, block_length=blocks)
        works = [Work(c, strategy, options, 0, c.start, per_pass=True) for c in canvases]
        for in_flight in flights:
            engine = Engine(lm, Limits(places=in_flight, queue=in_flight, seconds=3600))
            engine.start()
            # The first round records the CUDA graphs: a server that has run for a while knows every shape.
            drive(engine, works, in_flight)
            seconds, done = drive(engine, works, in_flight)
            engine.stop()
            yield {
                "reuse": reuse.value,
                "in flight": in_flight,
                "requests/s": len(done) / seconds,
                "tokens/s": len(done) * load.gen / seconds,
                "first pass, ms": 1e3 * median((w.first_pass or 0) - w.came for w in done),
                "first text, ms": 1e3 * median((w.first_text or 0) - w.came for w in done),
                "whole text, ms": 1e3 * median((w.finished or 0) - w.came for w in done),
            }


def main(
    model: str = "random:llada-8b",
    device: str | None = None,
    dtype: str | None = None,
    requests: int = 64,
    shortest: int = 64,
    longest: int = 320,
    gen: int = 256,
    passes: int = 48,
    block: int = 32,
    in_flight: str = "1,8,32",
    reuse: str = "none,prefix",
) -> None:
    """Requests per second and latencies of the engine, by how many requests are in flight."""
    lm = load(model, device=device, dtype=pick_dtype(dtype))
    cells: list[list[str]] = []
    columns: list[str] = []
    traffic = Load(requests, shortest, longest, gen, passes, block)
    for row in measure(lm, traffic, [*map(Reuse, reuse.split(","))], [*map(int, in_flight.split(","))]):
        columns = list(row)
        cells.append([str(cell) if isinstance(cell, str | int) else f"{cell:.1f}" for cell in row.values()])
        print(*cells[-1], file=sys.stderr, flush=True)  # so that a run that is cut short has printed what it measured
    print(Table(columns, cells, words=1).to_markdown())


if __name__ == "__main__":
    run(main)
