"""Prescribed forms over HTTP."""

from __future__ import annotations

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import httpx
import openai
import pytest

from server.helpers_server import until

pytest.importorskip("outlines_core", reason="forms need dapd[forms]")

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "ok": {"type": "boolean"}},
    "required": ["n", "ok"],
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}


def test_a_schema_is_kept_whole_and_streamed(served):
    whole = served.ask(max_tokens=48, response_format=FORMAT).json()["choices"][0]["text"]
    assert set(json.loads(whole)) == {"n", "ok"}
    assert whole == served.lm.generate("hello", max_new_tokens=48, json_schema=SCHEMA, early_stop=True).text
    chunks = served.chunks(max_tokens=48, response_format=FORMAT)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole


def test_the_stock_client_gets_its_form(served):
    client = openai.OpenAI(base_url=f"{served.base}/v1", api_key="none", max_retries=0)
    said = client.completions.create(
        model=served.lm.name, prompt="x", max_tokens=16, extra_body={"regex": "[0-9]{4}-[0-9]{2}"}
    )
    assert re.fullmatch("[0-9]{4}-[0-9]{2}", said.choices[0].text)


def test_a_chat_keeps_a_form(chatting):
    messages = [{"role": "user", "content": "Shuffle the list: 3 1 2"}]
    answer = chatting.ask("chat/completions", messages=messages, max_tokens=16, regex="[0-9]( [0-9])*").json()
    assert re.fullmatch("[0-9]( [0-9])*", answer["choices"][0]["message"]["content"])


def test_an_object_of_any_kind(served):
    answer = served.ask(max_tokens=48, response_format={"type": "json_object"}).json()
    assert isinstance(json.loads(answer["choices"][0]["text"]), dict)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"regex": "(a"}, "regex"),
        ({"regex": "[a-z]{40}"}, "max_tokens"),
        ({"regex": "a", "response_format": FORMAT}, "regex"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "integer", "minimum": 3}}}},
            "response_format",
        ),
        ({"regex": "a" * 30_000}, "regex"),
    ],
    ids=str,
)
def test_a_form_that_cannot_be_kept_is_refused_by_name(served, fields, param):
    answer = served.ask(**fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_the_time_of_a_request_counts_while_its_form_is_built(served, monkeypatch):
    monkeypatch.setattr(served.lm, "form", lambda **_: time.sleep(1))
    began = time.monotonic()
    assert served.ask(regex="a", timeout=0.1).status_code == 504
    assert served.ask(response_format={"type": "text"}, max_tokens=4).status_code == 200  # it does not wait for forms
    assert time.monotonic() - began < 1


def test_a_form_that_takes_long_does_not_hold_up_another(served, monkeypatch):
    """Nor do clients that ask for it again and again."""
    may_end = Event()
    begun = []

    def form(regex, **_):
        begun.append(regex)
        if regex == "slow":
            assert may_end.wait(30)

    monkeypatch.setattr(served.lm, "form", form)
    with ThreadPoolExecutor(3) as pool:
        assert served.ask(regex="slow", max_tokens=4, timeout=0.2).status_code == 504
        slow = [pool.submit(served.ask, regex="slow", max_tokens=4) for _ in range(3)]
        assert served.ask(regex="quick", max_tokens=4).status_code == 200
        assert begun == ["slow", "quick"]
        may_end.set()
        assert [one.result().status_code for one in slow] == [200] * 3
    assert begun == ["slow", "quick"] + ["slow"] * 3


def test_a_form_that_nobody_waits_for_any_more_is_not_built(served, monkeypatch):
    """A client that asks again after its own time is up would otherwise keep all others waiting for forms of its."""
    built = []

    def form(regex, **_):
        built.append(regex)
        time.sleep(0.5)

    monkeypatch.setattr(served.lm, "form", form)

    def ask(regex: str) -> int:
        body = served.body("completions", {"regex": regex, "max_tokens": 4})
        return httpx.post(f"{served.base}/v1/completions", json=body, timeout=0.2 if regex == "b" else 20).status_code

    with ThreadPoolExecutor(3) as pool:
        first = [pool.submit(ask, regex) for regex in ("a", "aa")]  # as many as are built at a time
        until(lambda: len(built) == 2)
        with pytest.raises(httpx.ReadTimeout):
            ask("b")
        assert ask("c") == 200
        assert [one.result() for one in first] == [200, 200]
    assert sorted(built) == ["a", "aa", "c"]
    assert served.metric('dapd:requests_total{path="/v1/completions",status="499"}') == 1
