"""Requests that come and go: queue, deadlines, hanging up, failures, the end; and neighbours that notice nothing."""

from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import pytest

from dapd.decoding import Options, Recordings
from dapd.server.config import Limits
from dapd.server.engine import BusyError, ClosedError, Engine
from dapd.server.jobs import Failed, Finished, Job, Work
from dapd.settings import setting
from decoding.rerun import Rerun
from server.helpers_server import PROMPT, Served, breaking, slow, until

MIX = [
    {},
    {"strategy": "fast-dllm"},
    {"block_length": 8, "reuse": "prefix"},
    {"temperature": 5.0, "seed": 7},
    {"strategy": "original", "max_tokens": 8},
    {"eos": "ban", "prompt": "a longer prompt than the others"},
]


def job(lm, prompt=PROMPT, n_new=16, seconds=60.0, tell=None, **fields):
    ids = lm.encode(prompt)
    work = Work(lm.canvas(prompt, n_new), setting("original").strategy, Options(**fields), 0, len(ids))
    heard = []
    made = Job(lm, work, 0, tell or heard.append, time.monotonic() + seconds)
    made.heard = heard
    return made


@pytest.fixture
def engine(lm):
    running = Engine(slow(lm, 0.02), Limits(places=4, queue=2))
    running.start()
    yield running
    running.stop()


def test_neighbours_change_nothing(served):
    alone = [served.ask(**fields).json()["choices"] for fields in MIX]
    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(lambda fields: served.ask(**fields).json()["choices"], MIX * 4))
    assert together == alone * 4
    assert served.metric("dapd:columns_computed_total") >= served.metric("dapd:columns_needed_total") > 0


def test_an_engine_that_ends_frees_its_memory(lm, monkeypatch):
    """Keys and values, and the passes that were recorded with them, which would hold them."""
    recordings = Recordings(Rerun())
    monkeypatch.setattr(type(lm), "recordings", recordings)
    running = Engine(lm, Limits(places=4))
    running.start()
    kept = job(lm, n_new=16, reuse="prefix", block_length=8)
    running.submit([kept])
    until(lambda: kept.heard and isinstance(kept.heard[-1], Finished))
    assert running.decoder.pool is not None
    assert recordings.kept
    running.stop()
    assert running.decoder.pool is None
    assert not recordings.kept
    assert not recordings.free


def test_a_full_queue_says_when_to_come_back(lm):
    with Served(slow(lm), places=1, queue=1) as served, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: served.ask(strategy="original"), range(8)))
        refused = [answer for answer in answers if answer.status_code == 429]
        assert [answer.status_code for answer in answers].count(200) == 8 - len(refused) >= 2
        assert refused
        assert int(refused[0].headers["retry-after"]) >= 1
        assert refused[0].json()["error"]["type"] == "rate_limit_error"


def test_a_request_is_taken_whole_or_not_at_all(engine):
    jobs = [job(engine.lm, n_new=8) for _ in range(7)]
    with pytest.raises(BusyError):
        engine.submit(jobs)
    assert engine.idle
    engine.submit(jobs[:6])
    until(lambda: engine.idle)
    assert all(isinstance(one.heard[-1], Finished) for one in jobs[:6])


def test_a_deadline_ends_a_request(lm):
    with Served(slow(lm)) as served:
        late = served.ask(max_tokens=64, strategy="original", timeout=0.3)
        assert late.status_code == 504
        until(lambda: served.engine.idle)
        assert served.ask(max_tokens=4).status_code == 200


def test_a_deadline_in_the_queue_counts_too(engine):
    long = [job(engine.lm, n_new=40) for _ in range(4)]
    waiting = job(engine.lm, seconds=0.1)
    engine.submit(long)
    until(lambda: len(engine.running) == 4)
    engine.submit([waiting])
    until(lambda: waiting.heard)
    assert waiting.heard == [Failed(0, "timeout")]
    assert waiting.passes == 0
    engine.cancel(long)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_takes_its_row_along(lm, stream):
    with Served(slow(lm)) as served:
        body = served.body("completions", {"max_tokens": 200, "strategy": "original", "stream": stream})
        with pytest.raises(httpx.TimeoutException):
            httpx.post(f"{served.base}/v1/completions", json=body, timeout=0.5)
        began = time.monotonic()
        until(lambda: served.engine.idle)
        assert time.monotonic() - began < 2
        assert served.metric('dapd:texts_total{end="gone"}') == 1
        assert served.engine.decoder.rows == []


def test_nobody_waits_while_a_form_is_looked_at(engine):
    """The event loop hands requests in: as long as it waits, the whole server is silent."""
    begun, go_on = threading.Event(), threading.Event()

    class Slow:
        def check(self, _):
            begun.set()
            assert go_on.wait(20)

    formed, other = job(engine.lm, n_new=4), job(engine.lm, n_new=4)
    formed.work = replace(formed.work, constraint=Slow())
    engine.submit([formed])
    assert begun.wait(20)
    threading.Timer(5, go_on.set).start()
    began = time.monotonic()
    engine.submit([other])
    engine.cancel([formed])
    assert time.monotonic() - began < 2
    go_on.set()
    until(lambda: engine.idle)
    assert isinstance(other.heard[-1], Finished)


def test_a_cancelled_row_is_gone_by_the_next_pass(engine):
    passes = []
    long = job(engine.lm, n_new=48, tell=lambda event: passes.append(event))
    engine.submit([long])
    until(lambda: long.passes >= 3)
    engine.cancel([long])
    seen = long.passes
    until(lambda: engine.idle)
    assert long.passes <= seen + 1
    assert passes[-1] == Failed(0, "gone")


def test_a_failing_request_leaves_its_neighbours_alone(lm):
    expected = lm.generate(PROMPT, max_new_tokens=32, early_stop=True)
    with Served(breaking(lm, "bad")) as served, ThreadPoolExecutor(6) as pool:
        prompts = [PROMPT, "bad", PROMPT, PROMPT, "bad", PROMPT]
        answers = list(pool.map(lambda prompt: served.ask(prompt=prompt, max_tokens=32), prompts))
        for prompt, answer in zip(prompts, answers, strict=True):
            if prompt == "bad":
                assert answer.status_code == 500
                assert "secret" not in answer.text
            else:
                assert answer.json()["choices"][0]["text"] == expected.text
        chunks = httpx.post(
            f"{served.base}/v1/completions", json=served.body("completions", {"prompt": "bad", "stream": True})
        ).text
        assert '"error"' in chunks
        assert "secret" not in chunks
        assert "[DONE]" not in chunks


def test_an_engine_whose_step_fails_as_a_whole_goes_on(engine):
    lost = job(engine.lm, n_new=32)
    engine.submit([lost])
    until(lambda: lost.passes >= 1)

    def fail():
        raise RuntimeError("no memory")

    engine.decoder.step = fail
    until(lambda: lost.heard)
    assert lost.heard[-1] == Failed(0, "fault")
    next_one = job(engine.lm, n_new=4)
    engine.submit([next_one])
    until(lambda: engine.idle)
    assert isinstance(next_one.heard[-1], Finished)


def test_an_engine_that_breaks_leaves_nobody_waiting(lm):
    with Served(slow(lm, 0.02)) as served, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(served.ask, max_tokens=64, strategy="original")
        until(lambda: served.engine.running)

        def fail():
            raise RuntimeError("a fault of the engine's own")

        served.engine._let_go = fail
        assert waiting.result(10).status_code == 503
        assert served.http.get("/ready").status_code == 503
        assert served.ask().status_code == 503


def test_long_texts_do_not_take_all_places(lm):
    engine = Engine(lm, Limits(places=4, queue=20))
    long = [job(engine.lm, n_new=200) for _ in range(8)]
    short = [job(engine.lm, n_new=8) for _ in range(2)]
    engine.queue += [*long, *short]
    engine._give_places()
    assert sum(one in engine.running for one in short) == 2
    assert sum(one in engine.running for one in long) == 2
    del engine.queue[:]


def test_short_texts_go_first_but_not_for_ever(lm):
    engine = Engine(lm, Limits(places=1, queue=20))
    short, long = job(lm, n_new=8), job(lm, n_new=200)
    assert engine._turn(short) < engine._turn(long)
    long.arrived -= 60
    assert engine._turn(long) < engine._turn(short)


def test_draining_finishes_what_is_here_and_takes_no_more(lm):
    with Served(slow(lm, 0.02)) as served, ThreadPoolExecutor(1) as pool:
        running = pool.submit(served.ask, max_tokens=16, strategy="original")
        until(lambda: served.engine.running)
        served.engine.drain()
        assert served.http.get("/ready").status_code == 503
        assert served.http.get("/health").status_code == 200
        late = served.ask()
        assert (late.status_code, "retry-after" in late.headers) == (503, True)
        assert running.result().status_code == 200
        with pytest.raises(ClosedError):
            served.engine.submit([job(lm)])


def test_the_end_fails_what_is_left(lm):
    engine = Engine(slow(lm, 0.02), Limits(places=1))
    engine.start()
    jobs = [job(engine.lm, n_new=64) for _ in range(2)]
    engine.submit(jobs)
    until(lambda: jobs[0].passes >= 1)
    engine.stop()
    assert [one.heard[-1] for one in jobs] == [Failed(0, "closed")] * 2
    assert not engine.thread.is_alive()


def test_a_client_that_does_not_read_is_left(lm):
    """The passes of these texts are more than the buffers hold: whoever does not read them would hold the server up."""
    with Served(lm, write_seconds=1) as served:
        for listening in served.uvicorn.servers[0].sockets:  # what the system buffers for a client is inherited
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        fields = {"max_tokens": 240, "n": 8, "temperature": 3, "strategy": "original"}
        fields |= {"stream_mode": "denoise", "stream": True}
        body = json.dumps(served.body("completions", fields)).encode()
        host, port = served.base.removeprefix("http://").split(":")
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect((host, int(port)))
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        raw.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        until(lambda: not served.engine.idle, 60)
        assert served.ask(max_tokens=8).status_code == 200  # others are served meanwhile
        until(lambda: served.engine.idle, 60)
        assert ended(served, "gone") == 8  # not finished: they were given up
        assert ended(served, "finished") == 1
        raw.close()
        assert served.ask(max_tokens=8).status_code == 200


def ended(served: Served, how: str) -> float:
    """How many texts ended in some way."""
    return served.metric(f'dapd:texts_total{{end="{how}"}}')


def test_threads_end_with_the_server(lm):
    with Served(lm) as served:
        served.ask()
    assert "dapd-engine" not in {thread.name for thread in threading.enumerate() if thread is served.engine.thread}
