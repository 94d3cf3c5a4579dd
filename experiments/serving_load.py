"""Load and faults: `python experiments/serving_load.py --seconds 300` starts a server and tests its limits.

Phases: latency and throughput at 1, 8 and 64 clients; 64 streaming clients of which a third hang up midway; malformed
and oversize bodies; clients that do not read; SIGTERM under load. The last line is JSON. Clients and server share the
machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

import httpx

from dapd.cli import run
from dapd.errors import DapdError

MODEL = "lab:any-text"
PROMPTS = ("Shuffle the list: 3 1 2", "the cat and the dog", "What is the capital", "a story of a bird", "7 5 9")
PATIENCE = 700.0
"""Timeout of the clients in seconds: longer than the server gives any request, so that its answer always arrives."""
STRATEGIES = ("dapd-staged", "dapd-direct", "fast-dllm", "klass", "original")


@dataclass
class Tally:
    """The results of the requests of some clients."""

    seconds: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    """Time from each request to its first text, in seconds."""
    tokens: int = 0
    statuses: Counter[str] = field(default_factory=Counter)

    def summary(self, wall: float) -> dict[str, Any]:
        done = len(self.seconds)
        return {
            "requests": done,
            "requests_per_second": round(done / wall, 2),
            "tokens_per_second": round(self.tokens / wall, 1),
            **{f"p{p}_ms": _percentile(self.seconds, p) for p in (50, 95, 99)},
            "first_text_p50_ms": _percentile(self.first, 50),
            "statuses": dict(self.statuses),
        }


def _percentile(values: list[float], percent: int) -> float | None:
    if len(values) < 2:
        return None
    return round(1000 * quantiles(values, n=100, method="inclusive")[percent - 1], 1)


class Server:
    """`dapd serve` as a process of its own."""

    def __init__(self, port: int, log: Path) -> None:
        self.base = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "dapd", "serve", "-m", MODEL, "--port", str(port), "--places", "64"]
        command += ["--queue", "128", "--device", "cpu", "--drain-seconds", "300"]
        self.log = log.open("w")
        self.process = subprocess.Popen(command, stderr=self.log, stdout=self.log)

    def wait(self, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            try:
                if httpx.get(f"{self.base}/ready").status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.2)
        raise DapdError(f"the server did not start; see {self.log.name}")

    def memory(self) -> int:
        """Resident memory in MB; 0 where the system does not tell."""
        status = Path(f"/proc/{self.process.pid}/status")
        lines = status.read_text().splitlines() if status.exists() else []
        return next((int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS")), 0)

    def rows(self) -> float:
        """Number of texts that the engine decodes or has queued."""
        lines = httpx.get(f"{self.base}/metrics").text.splitlines()
        return sum(float(line.split()[1]) for line in lines if line.startswith(("dapd:rows ", "dapd:queue_depth ")))


@contextmanager
def served(log: Path) -> Iterator[Server]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = Server(port, log)
    try:
        server.wait()
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
        server.process.wait()
        server.log.close()


def body(rng: random.Random) -> dict[str, Any]:
    """A random request: short or long, with one of several strategies."""
    return {
        "model": MODEL,
        "prompt": rng.choice(PROMPTS),
        "strategy": rng.choice(STRATEGIES),
        "max_tokens": rng.choice((8, 16, 32)),
        "eos": "ban",
        "logit_bias": {"5": -100},  # the end of the turn: every text fills its canvas
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def ask(client: httpx.AsyncClient, content: dict[str, Any], tally: Tally, leave_after: int | None = None) -> None:
    """Stream one request; the client hangs up after `leave_after` chunks."""
    began = time.monotonic()
    spoke, done, chunks, failed = None, False, 0, False
    async with client.stream("POST", "/v1/completions", json=content) as response:
        if response.status_code != 200:
            tally.statuses[str(response.status_code)] += 1
            return
        async for line in response.aiter_lines():
            chunks += line.startswith("data: ")
            if leave_after is not None and chunks > leave_after:
                tally.statuses["hung up"] += 1
                return
            if line == "data: [DONE]":
                done = True
            elif line.startswith("data: "):
                chunk = json.loads(line.removeprefix("data: "))
                failed = failed or "error" in chunk
                tally.tokens += chunk.get("usage", {}).get("completion_tokens", 0) if chunk.get("usage") else 0
                if spoke is None and chunk.get("choices") and chunk["choices"][0]["text"]:
                    spoke = time.monotonic()
    tally.statuses["failed" if failed else "finished" if done else "cut off"] += 1
    if done:
        tally.seconds.append(time.monotonic() - began)
        tally.first.append((spoke or time.monotonic()) - began)


async def load(server: Server, clients: int, seconds: float, share_leaving: float = 0.0) -> Tally:
    """Run some clients for some seconds, each with one request after the other."""
    tally, end = Tally(), time.monotonic() + seconds
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=server.base, timeout=PATIENCE, limits=limits) as client:

        async def one(number: int) -> None:
            rng = random.Random(number)
            while time.monotonic() < end:
                leaves = rng.random() < share_leaving
                await ask(client, body(rng), tally, rng.randint(1, 4) if leaves else None)

        await asyncio.gather(*map(one, range(clients)))
    return tally


def mutated(rng: random.Random) -> bytes:
    """The body of a request, most of the time with something wrong in it."""
    content = {"model": MODEL, "prompt": rng.choice(PROMPTS), "strategy": rng.choice(STRATEGIES), "max_tokens": 4}
    content |= {"temperature": 0.5, "eos": "none", "stream": False}
    odd: list[Any] = [None, "", "x" * 300, -1, 0, 10**30, 1e308, True, [], {}, [[]], {"a": []}, "\x00", "[MASK]", [-1]]
    names = [*content, "n", "stop", "seed", "logit_bias", "regex", "response_format", "block_length", "nonsense"]
    for _ in range(rng.randint(1, 3)):
        content[rng.choice(names)] = rng.choice(odd)
    written = json.dumps(content).encode()
    match rng.randint(0, 5):
        case 0:
            return written[: rng.randint(0, len(written))]
        case 1:
            place = rng.randrange(len(written))
            return written[:place] + bytes([rng.randrange(256)]) + written[place + 1 :]
    return written


async def malformed(server: Server, count: int) -> Counter[str]:
    """Send malformed requests and count the statuses of the answers."""
    statuses: Counter[str] = Counter()
    async with httpx.AsyncClient(base_url=server.base, timeout=PATIENCE) as client:

        async def some(seed: int) -> None:
            rng = random.Random(seed)
            for _ in range(count // 16):
                path = rng.choice(("/v1/completions", "/v1/chat/completions", "/v1/infill"))
                answer = await client.post(path, content=mutated(rng), headers={"content-type": "application/json"})
                statuses[str(answer.status_code)] += 1

        await asyncio.gather(*map(some, range(16)))
    return statuses


async def oversize(server: Server) -> Counter[str]:
    statuses: Counter[str] = Counter()
    async with httpx.AsyncClient(base_url=server.base, timeout=PATIENCE) as client:
        for size in (2_000_000, 20_000_000, 200_000_000):
            try:
                answer = await client.post("/v1/completions", content=b" " * size)
                statuses[str(answer.status_code)] += 1
            except httpx.TransportError:  # the server closed the connection before all was written
                statuses["connection closed"] += 1
    return statuses


async def slow_readers(server: Server, count: int) -> dict[str, Any]:
    """Open connections that send a request and never read, while other clients are served."""
    host, port = server.base.removeprefix("http://").split(":")
    content = json.dumps({**body(random.Random(0)), "stream_mode": "denoise", "edges": True, "max_tokens": 64}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    writers = []
    for _ in range(count):
        _, writer = await asyncio.open_connection(host, int(port), limit=1)
        writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        writers.append(writer)
    tally = await load(server, 4, 5.0)
    for writer in writers:
        writer.close()
    return {"slow_readers": count, "others": tally.summary(5.0)}


async def ending(server: Server) -> dict[str, Any]:
    """Send SIGTERM in the middle of 64 requests: those that were accepted finish, and the process ends by itself."""
    tally = Tally()
    async with httpx.AsyncClient(base_url=server.base, timeout=PATIENCE) as client:
        work = [asyncio.create_task(ask(client, body(random.Random(i)), tally)) for i in range(64)]
        await asyncio.sleep(1.0)
        server.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.2)
        late: dict[str, str] = {}
        for path in ("/health", "/ready"):
            try:
                late[path] = str((await client.get(path)).status_code)
            except httpx.TransportError:
                late[path] = "closed"
        outcomes = await asyncio.gather(*work, return_exceptions=True)
    lost = sum(isinstance(outcome, BaseException) for outcome in outcomes)
    code = await asyncio.to_thread(server.process.wait, 60)
    return {"during_drain": late, "statuses": dict(tally.statuses), "lost": lost, "exit_code": code}


async def settled(server: Server) -> float:
    """Number of texts still in the engine after ten seconds without requests; 0 as soon as it is empty."""
    for _ in range(100):
        rows = await asyncio.to_thread(server.rows)
        if rows == 0:
            return 0.0
        await asyncio.sleep(0.1)
    return rows


async def everything(server: Server, seconds: float, pace: float, n_malformed: int) -> dict[str, Any]:
    out: dict[str, Any] = {"model": MODEL, "cpus": os.cpu_count()}
    await load(server, 4, 3.0)  # warm-up
    for clients in (1, 8, 64):
        began = time.monotonic()
        tally = await load(server, clients, pace)
        out[f"clients_{clients}"] = tally.summary(time.monotonic() - began)
        say(f"{clients} clients", out[f"clients_{clients}"])
    before = server.memory()
    began = time.monotonic()
    tally = await load(server, 64, seconds, share_leaving=1 / 3)
    soak = tally.summary(time.monotonic() - began)
    out["soak"] = {**soak, "mb_before": before, "mb_after": server.memory(), "rows_left": await settled(server)}
    say("64 clients, a third hang up", out["soak"])
    phases: dict[str, Callable[[], Awaitable[Any]]] = {
        "malformed": lambda: malformed(server, n_malformed),
        "oversize": lambda: oversize(server),
        "slow_readers": lambda: slow_readers(server, 16),
        "sigterm": lambda: ending(server),
    }
    for name, phase in phases.items():
        began = time.monotonic()
        out[name] = {"found": await phase(), "seconds": round(time.monotonic() - began, 1)}
        say(name, out[name])
    return out


def say(name: str, found: object) -> None:
    print(f"{name}: {json.dumps(found)}", file=sys.stderr, flush=True)


def main(
    seconds: float = 300.0, pace: float = 30.0, malformed: int = 10_000, log: Path = Path("serving_load.log")
) -> None:
    """Put a server under load: `seconds` with clients that hang up, and `pace` seconds for each phase before."""
    with served(log) as server:
        print(json.dumps(asyncio.run(everything(server, seconds, pace, malformed))))


if __name__ == "__main__":
    run(main)
