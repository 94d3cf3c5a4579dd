"""Several replicas on Ray Serve: the answers of one process, and what becomes of requests when a replica dies."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import httpx
import pytest

openai = pytest.importorskip("openai")

import dapd  # noqa: E402
from dapd.errors import DapdError  # noqa: E402
from dapd.scale.on_ray import Cluster, connected  # noqa: E402
from dapd.scale.recipe import Recipe  # noqa: E402
from dapd.scale.replicas import NAME, Fleet, Replica, running, serve_replicas  # noqa: E402
from dapd.scale.team import Spread  # noqa: E402
from dapd.server import Config, Keys, Limits  # noqa: E402
from server.helpers_server import Served, until  # noqa: E402

# Ray is loaded by the tests, which one process runs, and not by each that collects them.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="the ray extra is not installed"),
]
RECIPE = Recipe("random:tiny-llada", "cpu")
KEY = "secret"
LONG = {"max_tokens": 100, "extra_body": {"strategy": "original", "eos": "ban", "block_length": 20}}
"""A text of 100 passes."""
PATIENCE = 400.0
TRIES = 5
"""Deaths that are tried: on a slow machine the streams of a replica may all be over when it dies."""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture(scope="module")
def joined(cluster) -> Iterator[Cluster]:
    """The cluster of all tests, with this process as one of those who lead work on it."""
    with connected(Spread(address=cluster.address)) as joined:
        yield joined


@pytest.fixture(scope="module")
def config() -> Config:
    return Config(port=free_port(), keys=Keys((KEY,)), limits=Limits(new_tokens=300))


@contextmanager
def serving(replicas: int, port: int, *more: str) -> Iterator[subprocess.Popen[str]]:
    """`dapd serve` with replicas that are ready."""
    fleet = ["--port", str(port), "--replicas", str(replicas), "--patience", str(PATIENCE)]
    running = subprocess.Popen(
        [sys.executable, "-m", "dapd", "serve", "-m", RECIPE.model, "--device", "cpu", *fleet, *more],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "DAPD_API_KEYS": KEY},
    )
    said = f"{replicas} replica{'s' * (replicas > 1)}, at http://127.0.0.1:{port}"
    try:
        assert running.stderr is not None
        assert any(said in line for line in running.stderr)
        yield running
    finally:
        if running.poll() is None:
            os.kill(running.pid, signal.SIGKILL)
        running.wait()


@pytest.fixture(scope="module")
def command(joined, config) -> Iterator[subprocess.Popen[str]]:
    """Two replicas on the cluster of all tests."""
    limits = ["--max-new-tokens", str(config.limits.new_tokens)]
    with serving(2, config.port, "--address", joined.spread.address, *limits) as running:
        yield running


def client_of(port: int) -> Any:
    """The stock client; it makes no second try of its own."""
    return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=KEY, max_retries=0, timeout=PATIENCE)


@pytest.fixture(scope="module")
def client(command, config):
    return client_of(config.port)


@pytest.fixture(scope="module")
def alone(config) -> Iterator[Any]:
    """The same for one process."""
    with Served(dapd.load(RECIPE.model, device="cpu"), replace(config, port=0)) as served:
        yield openai.OpenAI(base_url=f"{served.base}/v1", api_key=KEY, max_retries=0, timeout=PATIENCE)


def text(client: Any, prompt: str, **fields: Any) -> str:
    done = client.completions.create(model=RECIPE.model, prompt=prompt, **{"max_tokens": 16, **fields})
    return str(done.choices[0].text)


def streamed(client: Any, prompt: str, begun: threading.Event | None = None, **fields: Any) -> str:
    """The text of a stream that came to its end."""
    parts, finish = [], None
    for chunk in client.completions.create(model=RECIPE.model, prompt=prompt, stream=True, **fields):
        if begun is not None:
            begun.set()
        parts.append(chunk.choices[0].text)
        finish = chunk.choices[0].finish_reason or finish
    assert finish == "length", "a stream that ends without an error is whole"
    return "".join(parts)


def test_a_cluster_without_room_is_an_error_and_no_wait(joined, config):
    from ray import serve
    from ray.util import placement_group, remove_placement_group

    taken = placement_group([{"CPU": joined.totals["CPU"]}])
    config = replace(config, limits=Limits(drain_seconds=1))  # how long Ray Serve waits for the replica when it ends it
    try:
        assert taken.wait(PATIENCE)
        with pytest.raises(DapdError, match=r"not all ready after 2 s \(free in the cluster: 0 of"):  # noqa: SIM117
            with running(RECIPE, config, Fleet(1, patience=2), joined):
                pass
        serve.delete(NAME)  # before there is room, or the replica would start after all
    finally:  # or the other tests would wait for the room
        remove_placement_group(taken)


def test_replicas_answer_as_one_process_does(client, alone):
    prompts = [f"hello {number}" for number in range(12)]
    with ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(text, client, prompt) for prompt in prompts]
        answers = [one.result(PATIENCE) for one in asked]
    assert answers == [text(alone, prompt) for prompt in prompts]
    assert len(set(answers)) > 6
    fields = {"max_tokens": 32, "extra_body": {"block_length": 8}}
    assert streamed(client, "hello", **fields) == streamed(alone, "hello", **fields)


def test_keys_and_limits_are_those_of_one_process(client):
    with pytest.raises(openai.AuthenticationError):
        text(client.with_options(api_key="wrong"), "hello")
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        text(client, "hello", max_tokens=301)


def test_a_client_that_hangs_up_is_left(client):
    stream = client.completions.create(model=RECIPE.model, prompt="gone", stream=True, **LONG)
    next(iter(stream))
    stream.close()
    # Each replica counts for itself, and one of them, nobody knows which, answers.
    metrics = httpx.Client(base_url=str(client.base_url)[:-3], headers={"Authorization": f"Bearer {KEY}"})
    until(lambda: 'dapd:texts_total{end="gone"} 1.0' in metrics.get("/metrics").text, PATIENCE)
    metrics.close()


def test_streams_while_a_replica_is_killed(client, alone):
    prompts = [f"story {number}" for number in range(6)]
    with ThreadPoolExecutor(len(prompts)) as pool:
        whole = list(pool.map(lambda prompt: streamed(alone, prompt, **LONG), prompts))
    for _ in range(TRIES):
        endings = endings_around_a_death(client, prompts)
        # No waiting for another replica: the one that is left takes what comes.
        assert text(client, "hello") == text(alone, "hello")
        failed = [number for number, one in enumerate(endings) if isinstance(one, openai.APIConnectionError)]
        for number in failed:
            endings[number] = streamed(client, prompts[number], **LONG)
        assert endings == whole, "every stream came to its end, or could be asked for again"
        until(lambda: states() == {"RUNNING": 2}, PATIENCE)
        if 0 < len(failed) < len(prompts):
            return
    pytest.fail(f"in {TRIES} tries the replica that was killed never had a part of the streams")


def endings_around_a_death(client: Any, prompts: list[str]) -> list[object]:
    """Stream all prompts at once, kill a replica when all have begun, and say how each ended."""
    begun = [threading.Event() for _ in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        asked = [pool.submit(streamed, client, p, b, **LONG) for p, b in zip(prompts, begun, strict=True)]
        assert all(one.wait(PATIENCE) for one in begun)
        kill_a_replica()
        return [ending(one) for one in asked]


def states() -> dict[str, int]:
    """How many replicas are in which state."""
    from ray import serve

    return dict(serve.status().applications[NAME].deployments["server"].replica_states)


def named_actors() -> list[str]:
    import ray

    return [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]


def kill_a_replica() -> None:
    import ray

    name = next(name for name in named_actors() if name.startswith("SERVE_REPLICA"))
    ray.kill(ray.get_actor(name, namespace="serve"))


def ending(asked: Future[str]) -> object:
    """A text, or the error that the client saw."""
    try:
        return asked.result(PATIENCE)
    except openai.APIConnectionError as error:
        return error


def ended_while_it_writes(running: subprocess.Popen[str], client: Any) -> None:
    """End the command by SIGTERM in the middle of a text, which is finished all the same."""
    begun = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(streamed, client, "hello", begun, **LONG)
        assert begun.wait(PATIENCE)
        running.send_signal(signal.SIGTERM)
        assert len(asked.result(PATIENCE)) > 0
    assert running.wait(PATIENCE) == 0
    assert "Traceback" not in running.stderr.read()


def test_the_command_finishes_what_was_begun(command, client):
    """The last test with replicas on the cluster: it ends them, and leaves nothing there."""
    ended_while_it_writes(command, client)
    until(lambda: not any(name.startswith("SERVE") for name in named_actors()), PATIENCE)


def test_a_cluster_of_the_commands_own():
    port = free_port()
    with serving(1, port) as running:
        ended_while_it_writes(running, client_of(port))


def test_a_replica_whose_engine_died_is_not_well():
    replica = Replica(RECIPE, Config())
    replica.engine.start()
    replica.check_health()
    replica.engine.stop()
    with pytest.raises(RuntimeError, match="the engine has ended"):
        replica.check_health()


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [({"replicas": 0}, "replicas is 0"), ({"replicas": 3, "max_replicas": 2}, "at least the number of replicas, 3")],
)
def test_a_fleet_that_cannot_be(fields, complaint):
    with pytest.raises(DapdError, match=complaint):
        Fleet(**fields)


def test_without_ray_there_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DapdError, match=r"needs the package 'ray': pip install 'dapd\[ray\]'"):
        serve_replicas(RECIPE, Config(), Fleet(2))


def test_replicas_come_with_load():
    sizing = Fleet(1, 4).sizing(Limits(places=8))
    assert sizing == {"autoscaling_config": {"min_replicas": 1, "max_replicas": 4, "target_ongoing_requests": 8}}
