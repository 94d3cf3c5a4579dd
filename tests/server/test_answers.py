"""Answers over HTTP: their form, their counts, and that they are what `generate` gives alone."""

from __future__ import annotations

import math

import openai
import pytest

from dapd.errors import DapdError
from dapd.generation import DEFAULT_NEW_TOKENS
from dapd.server.answers import Answers
from dapd.server.jobs import Finished, Scored
from dapd.server.planning import Plan
from dapd.settings import DEFAULT_STRATEGY
from server.helpers_server import PROMPT, Served

SETTINGS = [
    {},
    {"strategy": "fast-dllm"},
    {"strategy": {"name": "dapd-direct", "tau_max": 0.2}},
    {"block_length": 8},
    {"block_length": 8, "reuse": "prefix"},
    {"block_length": 8, "reuse": "dual", "refresh": 2},
    {"reuse": "settled", "settle": 2},
    {"eos_run": 0.5},
    {"eos": "ban"},
    {"temperature": 0.7, "seed": 5},
    {"temperature": 1.0, "top_p": 0.9, "top_k": 20},
    {"early_stop": False},
]


def client(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.base}/v1", api_key="none", max_retries=0)


def alone(served: Served, fields, prompt=PROMPT, n_new=16, seed=0):
    """The same by `generate`, without a server."""
    fields = {"early_stop": True, "seed": seed, **fields}
    strategy = fields.pop("strategy", DEFAULT_STRATEGY)
    if isinstance(strategy, dict):
        from dapd.settings import strategy as made

        strategy = made(strategy["name"], **{k: v for k, v in strategy.items() if k != "name"})
    return served.lm.generate(prompt, strategy=strategy, max_new_tokens=n_new, **fields)


@pytest.mark.parametrize("fields", SETTINGS, ids=str)
def test_the_text_is_the_one_of_generate_alone(served, fields):
    answer = served.ask(**fields).json()
    done = alone(served, fields)
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (done.text, done.finish_reason)
    assert answer["usage"]["passes"] <= done.nfe  # the end of a turn ends the row as well


def test_usage_counts_neither_masks_nor_the_tail(served):
    answer = served.ask(max_tokens=32, logit_bias={str(served.lm.network.profile.eos_id): 30}).json()
    usage = answer["usage"]
    assert answer["choices"][0]["finish_reason"] == "stop"
    bias = ((served.lm.network.profile.eos_id, 30.0),)
    assert usage["completion_tokens"] == alone(served, {"bias": bias}, n_new=32).n_generated < 32
    assert usage["prompt_tokens"] == len(PROMPT)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["tokens_per_pass"] == pytest.approx(usage["completion_tokens"] / usage["passes"], abs=1e-4)


@pytest.mark.parametrize("prompt", ["", "x"])
def test_without_a_number_of_tokens_there_are_as_many_as_generate_takes(served, prompt):
    bias = {str(served.lm.network.profile.eot_id or 0): -100}
    answer = served.ask(prompt=prompt, max_tokens=None, eos="ban", logit_bias=bias)
    assert answer.status_code == 200, answer.text
    room = served.lm.network.max_length - len(prompt)
    assert answer.json()["usage"]["completion_tokens"] == min(DEFAULT_NEW_TOKENS, served.config.limits.new_tokens, room)


def test_without_a_number_of_tokens_the_blocks_of_a_setting_fit(lm):
    with Served(lm, new_tokens=30) as served:
        assert served.ask(max_tokens=None, strategy="klass@llada/mbpp").status_code == 200  # four blocks


def test_a_full_canvas_ends_by_length(served):
    answer = served.ask(eos="ban", logit_bias={str(served.lm.network.profile.eot_id or 0): -100}).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 16


def test_several_prompts_and_n_are_rows_with_seeds_of_their_own(served):
    fields = {"temperature": 9.0, "seed": 3}
    answer = served.ask(prompt=["one", "two"], n=2, **fields).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    for index, (choice, prompt) in enumerate(zip(answer["choices"], ["one", "one", "two", "two"], strict=True)):
        assert choice["text"] == alone(served, {"temperature": 9.0}, prompt, seed=3 + index).text
    assert answer["choices"][0]["text"] != answer["choices"][1]["text"]


def test_ids_are_prompts_too(served):
    by_ids = served.ask(prompt=list(PROMPT.encode())).json()["choices"][0]["text"]
    assert by_ids == served.ask().json()["choices"][0]["text"]


def test_echo_puts_the_prompt_before_the_text(served):
    assert served.ask(echo=True).json()["choices"][0]["text"] == PROMPT + served.ask().json()["choices"][0]["text"]


def test_a_stop_string_cuts_the_text_and_ends_the_row(served):
    ascii_only = {str(i): -100 for i in range(served.lm.network.vocab_size) if not 97 <= i < 123}
    fields = {"max_tokens": 32, "logit_bias": ascii_only, "strategy": "original", "block_length": 4}
    whole = served.ask(**fields).json()
    text = whole["choices"][0]["text"]
    stop = text[9:11]
    cut = served.ask(**fields, stop=[stop, "not there"]).json()
    assert cut["choices"][0]["text"] == text[: text.index(stop)]
    assert cut["choices"][0]["finish_reason"] == "stop"
    assert cut["usage"]["passes"] < whole["usage"]["passes"]
    assert cut["usage"]["completion_tokens"] == text.index(stop) + len(stop)


def test_a_bias_forces_a_token(served):
    assert served.ask(logit_bias={"65": 100}).json()["choices"][0]["text"] == "A" * 16


def test_logprobs_are_those_of_the_committing_pass(served):
    answer = served.ask(logprobs=3, eos="ban").json()["choices"][0]["logprobs"]
    done = alone(served, {"eos": "ban"})
    records = done.trace.steps
    told = {p: (t, c) for r in records for p, t, c in zip(r.positions, r.tokens, r.confidences, strict=True)}
    assert len(answer["tokens"]) == len(answer["token_logprobs"]) > 0
    for place, log_p in enumerate(answer["token_logprobs"]):
        assert log_p == pytest.approx(math.log(told[len(PROMPT) + place][1]), abs=1e-3)
    assert all(len(top) <= 3 for top in answer["top_logprobs"])
    assert answer["text_offset"][0] == 0


def test_tokens_that_are_parts_of_a_character_have_bytes_of_their_own(lm):
    scored = [Scored(byte, -0.5, ((byte, -0.5),)) for byte in "é".encode()]
    done = Finished(0, "é", [one.token for one in scored], "length", 2, 1, scored)
    tokens = Answers("chat", lm, Plan([], 0, [""]), 1).whole([done])["choices"][0]["logprobs"]["content"]
    assert [one["bytes"] for one in tokens] == [[byte] for byte in "é".encode()]
    assert [one["top_logprobs"][0]["bytes"] for one in tokens] == [one["bytes"] for one in tokens]


def test_infilling_gives_the_whole_text(served):
    answer = served.ask("infill", template="It is [MASK*4]!").json()
    done = served.lm.infill("It is [MASK*4]!", early_stop=True)
    assert answer["object"] == "infill"
    assert answer["choices"][0]["text"] == done.text
    assert answer["usage"]["completion_tokens"] == 4
    behind = served.ask("infill", template="[MASK*4]!", prompt="Q: ").json()
    assert behind["choices"][0]["text"] == served.lm.infill("[MASK*4]!", prompt="Q: ").text


def test_the_stock_client_chats(chatting):
    messages = [{"role": "user", "content": "Shuffle the list: 3 1 2"}]
    said = client(chatting).chat.completions.create(
        model="lab", messages=messages, max_tokens=24, logprobs=True, top_logprobs=2
    )
    done = chatting.lm.generate(messages, max_new_tokens=24, early_stop=True)
    assert said.choices[0].message.content == done.text
    assert said.choices[0].finish_reason == done.finish_reason
    assert done.ids[done.n_generated - 1] == chatting.lm.network.profile.eot_id
    assert said.usage.completion_tokens == done.n_generated == len(said.choices[0].logprobs.content) + 1
    assert all(len(token.top_logprobs) == 2 for token in said.choices[0].logprobs.content)
    assert said.usage.passes > 0
    assert said.id.startswith("chatcmpl-")


def test_an_answer_may_come_back_as_it_was_sent(chatting):
    asked = [{"role": "user", "content": "Shuffle the list: 3 1 2"}]
    said = client(chatting).chat.completions.create(model="lab", messages=asked, max_tokens=8).choices[0].message
    again = client(chatting).chat.completions.create(model="lab", messages=[*asked, said, *asked], max_tokens=8)
    plain = [*asked, {"role": "assistant", "content": said.content}, *asked]
    assert again.choices[0].message.content == chatting.lm.generate(plain, max_new_tokens=8, early_stop=True).text
    refused = chatting.ask("chat/completions", messages=[{"role": "assistant", "content": "3", "refusal": "no"}])
    assert refused.json()["error"]["param"] == "messages.0.refusal"


def test_parts_and_developers_are_read(chatting):
    plain = chatting.ask(
        "chat/completions", messages=[{"role": "user", "content": "Shuffle the list: 3"}], max_tokens=8
    )
    parts = [{"type": "text", "text": "Shuffle the"}, {"type": "text", "text": " list: 3"}]
    split = chatting.ask("chat/completions", messages=[{"role": "user", "content": parts}], max_tokens=8)
    assert plain.json()["choices"] == split.json()["choices"]


def test_the_stock_client_lists_and_completes(served):
    assert [model.id for model in client(served).models.list()] == [served.lm.name]
    assert client(served).models.retrieve(served.lm.name).id == served.lm.name
    said = client(served).completions.create(model=served.lm.name, prompt=PROMPT, max_tokens=16)
    assert said.choices[0].text == alone(served, {}).text
    with pytest.raises(openai.NotFoundError):
        client(served).completions.create(model="another", prompt=PROMPT)


def test_what_an_operator_asks(served):
    assert served.http.get("/health").json() == {"status": "ok"}
    assert served.http.get("/ready").json() == {"ready": True}
    for path in ("/health", "/ready"):  # some load balancers ask with HEAD
        answer = served.http.head(path)
        assert (answer.status_code, answer.content) == (200, b"")
    assert served.http.get("/version").json()["model"] == served.lm.name
    before = served.metric("dapd:diffusion_num_committed_tokens_total")
    usage = served.ask(eos="ban").json()["usage"]
    assert served.metric("dapd:diffusion_num_committed_tokens_total") - before == usage["completion_tokens"]
    for name in ("rows_per_step", "step_seconds", "queue_seconds", "time_to_first_text_seconds"):
        assert served.metric(f"dapd:{name}_count") > 0


def test_generate_alone_and_the_server_refuse_the_same(served):
    with pytest.raises(DapdError, match="does not divide"):
        alone(served, {"block_length": 7})
    assert "does not divide" in served.ask(block_length=7).json()["error"]["message"]
