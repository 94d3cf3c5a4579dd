"""Who is let in, how much is taken, and what an error says."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from contextlib import suppress

import httpx
import pytest

from dapd.errors import DapdError
from dapd.server import Config, Keys, Limits
from server.helpers_server import Served, slow, until

REFUSED = {
    "presence_penalty": 1.0,
    "frequency_penalty": 0.5,
    "best_of": 2,
    "suffix": "x",
    "temperature": -1,
    "top_p": 0,
    "top_k": 0,
    "n": 2,
    "max_tokens": 0,
    "seed": -1,
    "stop": [""],
    "logit_bias": {"x": 1},
    "logprobs": 99,
    "strategy": "no-such",
    "block_length": 0,
    "reuse": "all",
    "eos": "maybe",
    "stream_mode": "loud",
    "prompt": [10**9],
    "timeout": 0,
    "unheard_of": 1,
    "early_stop": "yes",
    "regex": "",
    "refresh": 3,
}


@pytest.mark.parametrize(("name", "value"), REFUSED.items())
def test_what_cannot_be_honoured_is_refused_by_name(served, name, value):
    answer = served.ask(**{name: value})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert name in f"{error['param']} {error['message']}"


BLAMED = {
    "stop": ({"stop": ["a"] * 9}, "at most 8"),
    "prompt": ({"prompt": []}, "at least 1"),
    "prompt.0": ({"prompt": [-1]}, "greater than or equal to 0"),
    "template": ({"template": 5}, "it must be a string or it must be a list"),
    "messages": ({"messages": [{"role": "user", "content": "x"}], "prompt": "x"}, "there is no such field"),
    "stream_options": ({"stream_options": {"include_usage": True}}, "needs stream"),
    "stream_mode": ({"stream_mode": "denoise"}, "needs stream"),
    "edges": ({"stream": True, "edges": True}, "needs stream"),
    "echo": ({"echo": True, "logprobs": 1}, "leave out echo"),
    "timeout": ({"timeout": 601}, "at most 600 seconds"),
    "logit_bias": ({"logit_bias": {"01": 5}}, "not a token id"),
    "n_blocks": ({"n_blocks": 3}, "do not divide"),
    "regex": ({"regex": "[a-z]{9}\\x00"}, "cannot spell"),
    "response_format": ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, "needs a type"),
}


@pytest.mark.parametrize("param", BLAMED)
def test_the_field_to_change_is_named_and_what_is_wrong_with_it(served, param):
    fields, words = BLAMED[param]
    error = served.ask("infill" if "template" in fields else "completions", **fields).json()["error"]
    assert error["param"] == param
    assert words in error["message"]


def test_a_prompt_that_leaves_no_room_is_the_one_to_blame(served):
    room = served.lm.network.max_length
    error = served.ask(prompt=[65] * room, max_tokens=None).json()["error"]
    assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")
    assert f"the model takes at most {room - 1}" in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [("GET", "completions", "use POST"), ("POST", "words", "no such path"), ("POST", "completions/", "no such path")],
)
def test_a_wrong_path_or_method_says_which_is_right(served, method, path, words):
    assert words in served.http.request(method, f"/v1/{path}").json()["error"]["message"]


@pytest.mark.parametrize("name", ["tools", "functions", "audio", "store", "modalities", "prediction"])
def test_what_a_chat_cannot_honour_is_refused_by_name(chatting, name):
    value = {"tools": [{}], "functions": [{}], "store": True}.get(name, ["audio"])
    answer = chatting.ask("chat/completions", messages=[{"role": "user", "content": "Sort"}], **{name: value})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == name


def test_null_is_a_field_left_out(served):
    left_out = ("stream", "stream_mode", "early_stop", "edges", "echo", "stream_options", "strategy", "top_k", "n")
    answer = served.ask(**dict.fromkeys(left_out))
    assert answer.json()["choices"] == served.ask().json()["choices"]
    assert served.chunks(stream_options={"include_usage": None})


def test_neutral_values_pass(served):
    neutral = {"presence_penalty": 0, "frequency_penalty": 0.0, "best_of": 1, "suffix": None, "user": "me", "n": 1}
    assert served.ask(**neutral, temperature=None, stop=None).status_code == 200


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"name": "dapd-staged", "tau_mux": 1}, "tau_max"),
        ({"name": "dapd-staged", "tau_max": "high"}, "tau_max"),
        ({"name": "dapd-staged", "layers": [99]}, "layers"),
        ({"name": "dapd-staged", "layers": 1e300}, "strategy"),
        ({"name": "dream", "steps": 10**12}, "steps"),
        ({"tau_max": 1}, "name"),
    ],
)
def test_a_strategy_with_wrong_settings_is_a_mistake(served, settings, word):
    answer = served.ask(strategy=settings)
    assert answer.status_code == 400
    assert word in answer.text


BODIES = {
    "nothing": b"",
    "no json": b"{",
    "a list": b"[]",
    "deep": b"[" * 100_000,
    "deep schema": json.dumps({"model": "m", "prompt": "x"}).encode()[:-1] + b',"response_format":' + b'{"a":' * 5000,
    "nan": b'{"model": "random:tiny-llada", "prompt": "x", "temperature": NaN}',
    "huge number": b'{"model": "random:tiny-llada", "prompt": "x", "max_tokens": 1' + b"0" * 400 + b"}",
    "very huge number": b'{"model": "random:tiny-llada", "prompt": "x", "max_tokens": 1' + b"0" * 5000 + b"}",
    "lone surrogate": b'{"model": "random:tiny-llada", "prompt": "\\ud800"}',
    "surrogate in a name": b'{"\\ud800": 1}',
    "very long token id": b'{"model": "random:tiny-llada", "prompt": "x", "logit_bias": {"' + b"0" * 5000 + b'": 1}}',
    "not utf-8": b'{"model": "\xff"}',
    "empty prompt list": b'{"model": "random:tiny-llada", "prompt": []}',
    "two kinds of prompts": b'{"model": "random:tiny-llada", "prompt": ["a", 3]}',
    "a mask in the prompt": b'{"model": "random:tiny-llada", "prompt": [1, %d]}',
}


@pytest.mark.parametrize("name", BODIES)
def test_a_malformed_body_is_the_clients_mistake(served, name):
    body = BODIES[name].replace(b"%d", str(served.lm.network.profile.mask_id).encode())
    answer = served.http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert len(answer.text) < 1000


def test_a_schema_of_any_depth_is_the_clients_mistake(served):
    """Python reads JSON that is nested about a thousand levels deep, and may then be unable to write it."""
    for depth in range(900, 1000, 2):
        schema = '{"type":"array","items":' * depth + "1" + "}" * depth
        form = f'{{"type": "json_schema", "json_schema": {{"schema": {schema}}}}}'
        body = f'{{"model": "{served.lm.name}", "prompt": "x", "response_format": {form}}}'
        answer = served.http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400, depth


def test_other_content_and_other_methods(served):
    form = served.http.post("/v1/completions", content=b'{"model":"x"}', headers={"content-type": "text/plain"})
    assert form.status_code == 400
    assert "application/json" in form.json()["error"]["message"]
    assert served.http.get("/v1/completions").status_code == 405
    assert served.http.get("/v1/models/../../etc/passwd").status_code == 404
    assert served.http.get("/nothing/here").status_code == 404


def test_large_bodies_are_refused_by_their_header_and_by_their_bytes(lm):
    with Served(lm, body_bytes=5000) as served:
        assert served.ask(prompt="x" * 6000).status_code == 413

        def parts():
            for _ in range(20):
                yield b" " * 1000

        assert served.http.post("/v1/completions", content=parts()).status_code == 413
        assert served.ask().status_code == 200


def test_limits_on_prompt_generation_and_choices(lm):
    with Served(lm, prompt_tokens=20, new_tokens=30, choices=2) as served:
        assert served.ask(prompt="x" * 21).json()["error"]["code"] == "too_long"
        assert served.ask(max_tokens=31).status_code == 400
        assert served.ask(n=3, temperature=1.0).status_code == 400
        assert served.ask(prompt=["a", "b", "c"]).status_code == 400
        for name in ("block_length", "n_blocks"):
            error = served.ask(max_tokens=None, **{name: 31}).json()["error"]
            assert (error["param"], error["message"]) == (name, f"{name} is 31; at most 30 new tokens are allowed")
        assert served.ask("infill", template="[MASK*31]").status_code == 400
        assert served.ask(prompt="x" * 20, max_tokens=30).status_code == 200


def test_a_body_that_never_comes_is_not_waited_for(lm):
    with Served(lm, body_seconds=1) as served:
        host, port = served.base.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as raw:
            raw.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: 100\r\n\r\n{{".encode())
            began = time.monotonic()
            assert b"408" in raw.recv(1000)
            assert time.monotonic() - began < 5


def test_whoever_is_still_sending_when_the_server_ends_is_told_so(lm):
    with Served(lm) as served:
        host, port = served.base.removeprefix("http://").split(":")
        raw = socket.create_connection((host, int(port)), timeout=10)
        raw.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: 100\r\n\r\n{{".encode())
        until(lambda: served.uvicorn.server_state.tasks)
    with raw:
        answer = raw.recv(10_000)
    assert b" 503 " in answer
    assert b"x-request-id" in answer


def test_a_body_that_comes_drop_by_drop_is_not_waited_for(lm):
    """Every part comes well within the time that the whole body has."""
    with Served(lm, body_seconds=1) as served:
        host, port = served.base.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as raw:
            raw.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: 100\r\n\r\n".encode())
            raw.settimeout(0.2)
            answer = b""
            for _ in range(30):
                raw.sendall(b" ")
                with suppress(TimeoutError):
                    answer = raw.recv(1000)
                    break
            assert b"408" in answer


@pytest.mark.parametrize("before", [b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"])
@pytest.mark.parametrize("said", [b"", b"GET /health HTTP/1.1\r\n"])
def test_a_connection_that_asks_for_nothing_is_closed(lm, monkeypatch, before, said):
    """A thousand of these kept everybody else out for as long as they liked."""
    monkeypatch.setattr("dapd.server.connection.SECONDS", 1.0)
    with Served(lm) as served:
        host, port = served.base.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=8) as raw:
            if before:
                raw.sendall(before)
                assert b"200 OK" in raw.recv(10_000)
            raw.sendall(said)
            assert raw.recv(10_000) == b""


def test_a_head_without_end_is_refused(served):
    host, port = served.base.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as raw:
        raw.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 200_000)
        assert b" 400 " in raw.recv(100)


def test_a_connection_is_kept_for_as_long_as_an_answer_takes(lm, monkeypatch):
    monkeypatch.setattr("dapd.server.connection.SECONDS", 0.3)
    with Served(slow(lm)) as served:
        for _ in range(2):
            assert served.ask(strategy="original", max_tokens=16, eos="ban").status_code == 200


@pytest.mark.parametrize("reads", [False, True])
def test_a_client_that_reads_nothing_is_left_and_a_slow_one_is_not(lm, monkeypatch, reads):
    """No key is needed for these, and the system keeps open what is closed before it was read."""
    monkeypatch.setattr("dapd.server.connection.SECONDS", 0.5)
    with Served(lm) as served:
        for listening in served.uvicorn.servers[0].sockets:  # what the system buffers for a client is inherited
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        host, port = served.base.removeprefix("http://").split(":")
        with socket.socket() as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.connect((host, int(port)))
            request = f"GET /static/saved.html HTTP/1.1\r\nHost: {host}\r\n"
            raw.sendall(f"{request}\r\n{request}Connection: close\r\n\r\n".encode())
            until(lambda: served.uvicorn.server_state.connections)
            if not reads:
                until(lambda: not served.uvicorn.server_state.connections, 5)
                return
            began = time.monotonic()
            answer = bytearray()
            while part := raw.recv(2048):
                answer += part
                time.sleep(0.03)
            assert answer.count(b"200 OK") == 2
            assert time.monotonic() - began > 1


def test_keys_open_the_door(lm):
    with Served(lm, Config(keys=Keys(("first", "second")))) as served:
        for path in ("/v1/models", "/metrics", "/version", "/openapi.json"):
            assert served.http.get(path).status_code == 401
            assert served.http.get(path, headers={"Authorization": "Bearer wrong"}).status_code == 401
            assert served.http.get(path, headers={"Authorization": "Basic first"}).status_code == 401
            assert served.http.get(path, headers={"Authorization": "Bearer second"}).status_code == 200
        assert served.http.get("/health").status_code == 200
        assert served.http.get("/ready").status_code == 200
        assert served.ask().status_code == 401


def test_keys_come_from_a_file_and_from_the_environment(tmp_path, monkeypatch):
    path = tmp_path / "keys"
    path.write_text("# for the team\none\n\ntwo\n")
    monkeypatch.setenv("DAPD_API_KEYS", "three, four")
    keys = Keys.find(path)
    assert all(key in keys for key in ("one", "two", "three", "four"))
    assert "" not in keys
    assert "# for the team" not in keys
    with pytest.raises(DapdError, match="cannot read"):
        Keys.find(tmp_path / "none")
    monkeypatch.delenv("DAPD_API_KEYS")
    path.write_bytes(b"\xef\xbb\xbffirst\r\nlast\r\n")  # as an editor of Windows writes it
    assert all(key in Keys.find(path) for key in ("first", "last"))
    path.write_text("\n")
    with pytest.raises(DapdError, match="holds no API key"):
        Keys.find(path)
    assert not Keys.find(None)


def test_other_machines_need_keys():
    with pytest.raises(DapdError, match="API keys"):
        Config("0.0.0.0")
    assert not Config("0.0.0.0", anonymous=True).is_local
    assert Config("0.0.0.0", keys=Keys(("x",))).keys
    with pytest.raises(DapdError, match="places"):
        Limits(places=0)


def test_other_origins_and_other_names_are_refused(lm):
    with Served(lm, Config(origins=("https://friend.example",))) as served:
        host = served.base.removeprefix("http://")
        for origin, status in {
            served.base: 200,
            "https://friend.example": 200,
            "http://evil.example": 403,
            "null": 403,
            f"http://{host}.evil.example": 403,
            "http://[x": 403,
        }.items():
            assert served.http.get("/version", headers={"Origin": origin}).status_code == status, origin
        names = {"evil.example": 403, "localhost": 200, "[::1]:80": 200, "": 403, "[": 403, "][": 403, "[x]": 403}
        for name, status in names.items():
            assert served.http.get("/version", headers={"Host": name}).status_code == status, name


def test_an_origin_that_no_browser_sends_is_refused():
    for wrong in ("https://a.example/", "a.example", "*", "", "https://A.example", "https://a:443", "http://a:80"):
        with pytest.raises(DapdError, match="no browser sends the origin"):
            Config(origins=(wrong,))
    for right in ("https://a.example", "http://localhost:3000", "http://[::1]:8080", "null", "vscode-webview://1x-2"):
        assert Config(origins=(right,)).origins == (right,)


def test_a_page_that_may_call_can_do_so_from_a_browser(lm):
    """A browser first asks whether the page may send JSON and a key, and then shows it answers that name its origin."""
    friend = "https://friend.example"
    wanted = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    wanted["Access-Control-Request-Private-Network"] = "true"  # as Chromium asks for a server on loopback
    with Served(lm, Config(origins=(friend,), keys=Keys(("first",)))) as served:

        def asked(origin: str) -> httpx.Response:
            return served.http.options("/v1/completions", headers={"Origin": origin, **wanted})

        assert asked(friend).status_code == 200
        assert asked(friend).headers["access-control-allow-origin"] == friend
        assert "authorization" in asked(friend).headers["access-control-allow-headers"]
        assert asked(friend).headers["access-control-allow-private-network"] == "true"
        assert "access-control-allow-origin" not in asked("https://evil.example").headers
        for key, status in {"first": 200, "wrong": 401}.items():
            answer = served.http.get("/v1/models", headers={"Origin": friend, "Authorization": f"Bearer {key}"})
            assert answer.status_code == status
            assert answer.headers["access-control-allow-origin"] == friend
            assert "X-Request-ID" in answer.headers["access-control-expose-headers"]
        evil = served.http.get(
            "/v1/models", headers={"Origin": "https://evil.example", "Authorization": "Bearer first"}
        )
        assert evil.status_code == 403
        assert "access-control-allow-origin" not in evil.headers


def test_every_answer_carries_the_policy(served):
    for path in ("/health", "/nothing", "/v1/models"):
        headers = served.http.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers or "uvicorn" in headers["server"]


def test_a_fault_is_counted_and_has_the_headers_of_every_answer(served, monkeypatch):
    monkeypatch.setattr(served.lm, "canvas", lambda *_: 1 / 0)
    answer = served.ask()
    assert answer.status_code == 500
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert {"x-request-id", "content-security-policy"} <= set(answer.headers)
    assert served.metric('dapd:requests_total{path="/v1/completions",status="500"}') == 1


def test_a_request_has_an_id(served):
    assert served.http.get("/health", headers={"X-Request-ID": "my-id.7"}).headers["x-request-id"] == "my-id.7"
    made_up = served.http.get("/health", headers={"X-Request-ID": "a b"}).headers["x-request-id"]
    assert len(made_up) == 32


def test_the_core_needs_no_web_framework():
    code = (
        "import sys; sys.modules['fastapi'] = None\n"
        "import dapd, dapd.cli.app, dapd.server.engine\n"
        "try:\n    from dapd.server import serve\nexcept dapd.DapdError as error:\n    print(error)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install 'dapd[serve]'" in out


def test_a_label_is_never_made_up_by_a_client(served):
    for number in range(5):
        served.http.get(f"/made-up-{number}")
    assert "made-up" not in httpx.get(f"{served.base}/metrics").text


def test_no_request_opens_a_module_or_a_file(served: Served, tmp_path, monkeypatch):
    """What a user may name on the command line runs code; a stranger may not name it."""
    (tmp_path / "planted.py").write_text("open('opened', 'w').close()\ndef make():\n    pass\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("planted:make", "planted.py:make", f"{tmp_path}/planted.py:make", "planted.py:make:size=1"):
        assert served.ask(model=name).status_code == 404
        assert served.ask(strategy=name).status_code == 400
        assert served.ask(strategy={"name": name}).status_code == 400
        assert served.ask("infill", model=name, prompt=None, template="a[MASK]").status_code in (400, 404)
    assert "planted" not in sys.modules
    assert not (tmp_path / "opened").exists()


def test_the_model_is_known_by_a_name_and_not_by_its_path(tmp_path) -> None:
    folder = tmp_path / "llada-8b"
    folder.mkdir()
    link = tmp_path / "latest"
    link.symlink_to(folder)
    assert Config().public_name(str(folder)) == "llada-8b"
    assert Config().public_name(f"{folder} (fp8)") == "llada-8b (fp8)"
    assert Config().public_name(str(link)) == "latest", "it is called as it was named, wherever the link leads"
    assert Config().public_name(f"{tmp_path}/mine.py:make:size=3") == "mine.py:make:size=3"
    assert Config().public_name("GSAI-ML/LLaDA-8B-Instruct") == "GSAI-ML/LLaDA-8B-Instruct"
    assert Config().public_name("random:tiny-llada") == "random:tiny-llada"
    assert Config(name="mine").public_name(str(folder)) == "mine"
