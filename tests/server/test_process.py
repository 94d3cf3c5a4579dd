"""`dapd serve` as a process: it starts, serves, drains on SIGTERM and ends by itself."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import pytest

from cli.test_mistakes import fails
from dapd.cli import main
from dapd.cli.serve import tell
from dapd.server import Config
from server.helpers_server import events, until


@pytest.fixture
def process(request):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "dapd", "serve", "-m", "random:tiny-llada", "--port", str(port), "--device", "cpu"]
    command += getattr(request, "param", [])
    environment = {**os.environ, "DAPD_API_KEYS": "secret"}
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", headers={"Authorization": "Bearer secret"}, timeout=60)

    def is_ready() -> bool:
        try:
            return client.get("/ready").status_code == 200
        except httpx.TransportError:
            return False

    until(is_ready, 60)
    yield running, client
    if running.poll() is None:
        running.kill()
    running.wait()
    client.close()


def test_it_asks_for_a_key_and_finishes_what_was_begun_after_sigterm(process):
    running, client = process
    assert httpx.get(f"{client.base_url}/v1/models").status_code == 401
    assert client.get("/v1/models").json()["data"][0]["id"] == "random:tiny-llada"
    body = {"model": "random:tiny-llada", "prompt": "hello", "max_tokens": 200, "strategy": "original", "stream": True}
    body |= {"eos": "ban"}

    def stream(_: int) -> list[str]:
        with client.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            return list(events(lines))

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(stream, number) for number in range(4)]
        until(lambda: "dapd:rows 4.0" in client.get("/metrics").text)
        running.send_signal(signal.SIGTERM)
        until(lambda: client.get("/ready").status_code == 503)
        assert client.get("/health").status_code == 200
        assert client.post("/v1/completions", json=body).status_code == 503
        for one in asked:
            found = one.result()
            assert found[-1] == "[DONE]"
            assert json.loads(found[-2])["choices"][0]["finish_reason"] in ("stop", "length")
    assert running.wait(30) == 0
    said = running.stderr.read()
    assert "Traceback" not in said


def test_a_form_that_is_being_built_does_not_hold_up_the_end(process):
    """To build this one takes as long as it may, a minute. The second request waits for the first."""
    running, client = process
    body = {"model": "random:tiny-llada", "prompt": "hello", "max_tokens": 64, "regex": "(a|b)*a(a|b){40}"}
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(client.post, "/v1/completions", json=body) for _ in range(2)]
        until(lambda: subprocess.run(["pgrep", "-P", str(running.pid)], stdout=subprocess.DEVNULL).returncode == 0)
        running.send_signal(signal.SIGTERM)
        assert running.wait(15) == 0
        assert [one.result().status_code for one in asked] == [503, 503]
    assert "Traceback" not in running.stderr.read()


@pytest.mark.parametrize("more", [[], ["--replicas", "1"]])
def test_a_port_that_is_taken_is_told_before_the_model_is_loaded(more, monkeypatch):
    for loading in ("dapd.cli.serve.opened", "dapd.scale.replicas.serve_replicas"):
        monkeypatch.setattr(loading, lambda *_, **__: pytest.fail("it was begun"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        line = fails(main, "serve", "-m", "random:tiny-llada", "--port", port, *more)
    assert f"cannot listen at 127.0.0.1, port {port}: address already in use; choose another --port" in line


def test_ctrl_c_ends_it_and_whoever_waits_is_told_so():
    """Also that it says where it listens, on whatever port it got, and not before it does."""
    command = [sys.executable, "-m", "dapd", "serve", "-m", "random:tiny-llada", "--port", "0", "--device", "cpu"]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    [address] = re.findall(r"at (http://127\.0\.0\.1:[1-9]\d*) \(Ctrl-C ends it\)", running.stderr.readline())
    body = {"model": "random:tiny-llada", "prompt": "x", "max_tokens": 1000, "strategy": "original", "eos": "ban"}
    with httpx.Client(base_url=address, timeout=60) as client, ThreadPoolExecutor(2) as pool:
        try:
            asked = [
                pool.submit(client.post, "/v1/completions", json={**body, "n": 4, "temperature": 1.0, "stream": stream})
                for stream in (True, False)
            ]
            until(lambda: "dapd:rows 8.0" in client.get("/metrics").text)
            running.send_signal(signal.SIGINT)
            stream, whole = (one.result() for one in asked)
            assert running.wait(30) == 0
        finally:
            running.kill()
    assert stream.text.endswith("\n\n")
    assert "shutting down" in stream.text.splitlines()[-2]
    assert (whole.status_code, "shutting down" in whole.text) == (503, True)
    assert running.stderr.read() == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_log_that_cannot_be_written_keeps_nobody_from_being_served(monkeypatch):
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr("sys.stderr", full)
        tell("lab, at http://127.0.0.1:8000")
        with pytest.raises(OSError, match="No space left"):
            print("lab", file=full, flush=True)
        monkeypatch.undo()
        with suppress(OSError):
            full.close()


def test_the_address_of_a_server():
    assert Config("::1", 8000).url() == "http://[::1]:8000"
    assert Config(port=0).url(4321) == "http://127.0.0.1:4321"
    assert "the number of the port that they share" in fails(
        main, "serve", "-m", "random:tiny-llada", "--port", 0, "--replicas", 1
    )


@pytest.mark.parametrize("process", [["--drain-seconds", "1", "--name", "mine"]], indirect=True)
def test_those_whose_time_is_over_are_told_so(process):
    running, client = process
    body = {"model": "mine", "prompt": "x", "max_tokens": 240, "strategy": "original", "eos": "ban"}
    body |= {"stream": True, "n": 16, "temperature": 1.0}

    def stream() -> str:
        with client.stream("POST", "/v1/completions", json=body) as response:
            return response.read().decode()

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(stream)
        until(lambda: "dapd:rows 16.0" in client.get("/metrics").text)
        running.send_signal(signal.SIGTERM)
        said = asked.result()
    assert running.wait(30) == 0
    assert "shutting down" in said or said.endswith("data: [DONE]\n\n")
