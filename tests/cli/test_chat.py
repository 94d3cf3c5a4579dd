"""`dapd chat`: answers, history, commands, mistakes."""

from __future__ import annotations

import json

import pytest

import dapd
from dapd.cli.chat import Conversation, chat
from dapd.errors import DapdError


@pytest.fixture(scope="module")
def lm():
    return dapd.load("lab", device="cpu")


@pytest.fixture
def talk(lm):
    return Conversation(lm, "dapd-staged", [], 16, None)


ASK = "Shuffle the list: 3 1 2"


def test_an_answer_is_the_models_and_is_remembered(talk, lm, capsys):
    def answer(asked):
        return lm.generate(asked, strategy="dapd-staged", max_new_tokens=16, early_stop=True).text

    question = {"role": "user", "content": ASK}
    talk.take(ASK)
    first = answer([question])
    assert capsys.readouterr().out == first + "\n"
    assert talk.messages == [question, {"role": "assistant", "content": first}]
    talk.take(ASK)
    assert talk.messages[3]["content"] == answer([*talk.messages[:2], question])


def test_commands(talk, lm, capsys, tmp_path):
    talk.take("/strategy fast-dllm threshold=0.5")
    talk.take("/strategy")
    assert json.loads(capsys.readouterr().out)["threshold"] == 0.5
    talk.take("/tokens 8")
    talk.take("/tokens")
    assert capsys.readouterr().out == "8\n"
    talk.take(ASK)
    expected = lm.generate(
        [{"role": "user", "content": ASK}],
        strategy=dapd.strategy("fast-dllm", threshold=0.5),
        max_new_tokens=8,
        early_stop=True,
    )
    assert talk.messages[-1]["content"] == expected.text
    talk.take(f"/save '{tmp_path}/a talk.json'")
    saved = json.loads((tmp_path / "a talk.json").read_text())
    assert saved == {"model": "lab", "strategy": "fast-dllm", "messages": talk.messages}
    capsys.readouterr()
    talk.take("/history")
    assert capsys.readouterr().out.startswith(f"user: {ASK}\nassistant: ")
    talk.take("/clear")
    assert talk.messages == []
    talk.take("/help")
    assert "/save FILE" in capsys.readouterr().out
    talk.take("/quit")
    assert not talk.goes_on


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ("/stratgey x", "did you mean '/strategy'"),
        ("/nope", "unknown command '/nope'; allowed: /clear"),
        ("/strategy nothing", "unknown strategy"),
        ("/strategy dapd-staged tau=1", "tau"),
        ("/tokens many", "/tokens"),
        ("/tokens ²", "/tokens"),
        ("/tokens " + "1" * 5000, "/tokens"),
        ("/save", "/save FILE"),
        ("/save 'half", "cannot read the command"),
        ("zzz", "does not know"),
    ],
)
def test_a_mistake_changes_nothing(talk, said, word):
    with pytest.raises(DapdError, match=word):
        talk.take(said)
    assert talk.messages == []
    assert talk.strategy == "dapd-staged"


def test_ctrl_c_forgets_the_question(talk, monkeypatch, capsys):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(talk.lm, "generate", interrupt)
    talk.take(ASK)
    assert talk.messages == []
    assert "stopped" in capsys.readouterr().err


def test_ctrl_c_at_the_prompt_names_the_way_out(monkeypatch, capsys):
    said = iter([KeyboardInterrupt, "/quit"])

    def read(_: str) -> str:
        line = next(said)
        if line is KeyboardInterrupt:
            raise KeyboardInterrupt
        return line

    monkeypatch.setattr("builtins.input", read)
    chat("lab", device="cpu")
    assert "/quit or Ctrl-D ends the conversation" in capsys.readouterr().err


def test_a_line_that_is_no_text_does_not_end_the_conversation(monkeypatch, capsys):
    said = iter([UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "/tokens", EOFError()])

    def read(_: str) -> str:
        line = next(said)
        if isinstance(line, Exception):
            raise line
        return line

    monkeypatch.setattr("builtins.input", read)
    chat("lab", device="cpu", max_new_tokens=7)
    out, err = capsys.readouterr()
    assert "cannot read standard input: 'utf-8' codec can't decode" in err
    assert out == "7\n"


def test_the_opening_stays(lm):
    talk = Conversation(lm, "original", [], 8, "Sort")
    talk.take("/clear")
    assert talk.messages == [{"role": "system", "content": "Sort"}]
