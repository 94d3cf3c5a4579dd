"""Text to ids: Dream's own tokenizer, a fast tokenizer with LLaDA's template, plain bytes."""

from __future__ import annotations

import json
import sys

import pytest

from dapd.errors import DapdError
from dapd.models import SHAPES, Profile
from dapd.models.tokenizer import ByteTokenizer, load_tokenizer
from helpers_models import DATA, LLADA_TEMPLATE, PROFILE, SPECIAL, TINY_PROFILE, write_tokenizer

BOS, EOS, MASK, HEADER, END_HEADER, EOT = range(6)
QUESTION = [{"role": "user", "content": "What is 2+2?"}]


def real_template():
    file = DATA / "llada_instruct" / "tokenizer_config.json"
    if not file.is_file():
        pytest.skip(f"LLaDA's template is not at {file}")
    return json.loads(file.read_text())["chat_template"]


@pytest.fixture(scope="module")
def dream():
    folder = DATA / "dream_instruct"
    if not folder.is_dir():
        pytest.skip(f"Dream's tokenizer is not at {folder}")
    return load_tokenizer(folder, SHAPES["dream-7b"].profile)


def test_dream_chat(dream):
    ids = dream.chat(QUESTION)
    assert len(ids) == 26
    assert ids[:4] == [151644, 8948, 198, 2610]
    assert ids[-3:] == [151644, 77091, 198]


def test_dream_text_and_back(dream):
    assert dream.has_chat
    ids = dream.encode("naïve 東京\n")
    assert dream.decode(ids) == "naïve 東京\n"
    assert 151643 not in ids
    assert 151665 not in ids
    assert dream.encode("<|mask|><|endoftext|><|im_end|>") == [151666, 151643, 151645]
    assert dream.decode([151666, 13048, 151643]) == "Hi"
    assert dream.decode([151666, 13048], skip_special=False) == "<|mask|>Hi"


def test_dream_mask_id_is_checked_against_the_tokenizer(dream):
    with pytest.raises(DapdError, match=r"mask id is 151666, the model's 57"):
        load_tokenizer(DATA / "dream_instruct", PROFILE)


@pytest.mark.parametrize("source", ["own", "released"])
@pytest.mark.parametrize("bos", [False, True], ids=["plain", "adds-bos"])
def test_llada_chat(tmp_path, source, bos):
    """One BOS, one header and one end of turn per message, and the assistant's header, whatever the tokenizer adds."""
    template = LLADA_TEMPLATE if source == "own" else real_template()
    tokenizer = load_tokenizer(write_tokenizer(tmp_path, template=template, bos=bos), TINY_PROFILE)
    plain = {text: tokenizer.encode(text, special=False) for text in ("user", "assistant", "Hi!", "Yes", "\n\n")}
    gap = [END_HEADER, *plain["\n\n"]]
    messages = [
        {"role": "user", "content": "  Hi!\n"},
        {"role": "assistant", "content": "Yes"},
        {"role": "user", "content": "Hi!"},
    ]
    want = [BOS, HEADER, *plain["user"], *gap, *plain["Hi!"], EOT]
    want += [HEADER, *plain["assistant"], *gap, *plain["Yes"], EOT]
    want += [HEADER, *plain["user"], *gap, *plain["Hi!"], EOT]
    want += [HEADER, *plain["assistant"], *gap]
    assert tokenizer.chat(messages) == want


def test_special_tokens_of_a_plain_text(tmp_path):
    tokenizer = load_tokenizer(write_tokenizer(tmp_path, bos=True), TINY_PROFILE)
    ids = tokenizer.encode("ab", special=False)
    assert tokenizer.encode("ab") == [BOS, *ids]
    assert tokenizer.decode([BOS, *ids, EOS]) == "ab"
    assert tokenizer.decode([*ids, MASK], skip_special=False) == "ab<|mdm_mask|>"


def test_mask_id_must_agree_with_the_tokenizer(tmp_path):
    write_tokenizer(tmp_path, mask=SPECIAL[MASK])
    assert load_tokenizer(tmp_path, TINY_PROFILE).encode("<|mdm_mask|>") == [MASK]
    with pytest.raises(DapdError, match=r"mask id is 2, the model's 57"):
        load_tokenizer(tmp_path, PROFILE)


def test_no_template(tmp_path):
    tokenizer = load_tokenizer(write_tokenizer(tmp_path, template=None), TINY_PROFILE)
    assert not tokenizer.has_chat
    with pytest.raises(DapdError, match="no chat template"):
        tokenizer.chat(QUESTION)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "empty"),
        ([{"role": "user"}], "message 0"),
        ([*QUESTION, "hello"], "message 1"),
        ([{"role": "usr", "content": "hello"}], "unknown role of message 0 'usr'; did you mean 'user'"),
    ],
    ids=["empty", "no content", "not a message", "unknown role"],
)
def test_malformed_messages(tmp_path, messages, words):
    with pytest.raises(DapdError, match=words):
        load_tokenizer(write_tokenizer(tmp_path), TINY_PROFILE).chat(messages)


BAD_TEMPLATES = [
    "{{ raise_exception('Only user and assistant roles are supported!') }}",
    "{% for m in messages %}{{ m.content }}",
    "{{ messages | no_such_filter }}",
    "{{ nothing.at.all }}",
    "{{ messages[99].content }}",
    "{{ messages[0]['content'] + 1 }}",
    "{{ 1 / 0 }}",
    "{{ none() }}",
    "{% include 'other' %}",
    "{% extends 'other' %}",
    "{% import 'os' as os %}{{ os.getcwd() }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.append(1) }}",
    "{{ 'a' * 1000000000000000 }}",
    "{% for i in range(10 ** 12) %}x{% endfor %}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ messages[0].content.no_such_method() }}",
    "{% set x = messages | map(attribute='a.b.c') | list %}{{ x[0].d.e }}",
    "{{ '%d' | format('x') }}",
    "{% unknown_tag %}",
    "{{",
    5,
    {"a": 1},
    [{"name": "tool", "template": "x"}],
]


@pytest.mark.parametrize("template", BAD_TEMPLATES, ids=str)
def test_a_bad_template_is_one_line(tmp_path, template):
    """A template is a program of the checkpoint's: whatever it does ends in an error that says so."""
    with pytest.raises(DapdError, match=r"chat template|tokenizer cannot be read") as caught:
        load_tokenizer(write_tokenizer(tmp_path, template=template), TINY_PROFILE).chat(QUESTION)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "5", '{"added_tokens_decoder": 5}', '{"model_max_length": {}, "extra": [[[]]]']
)
def test_a_settings_file_of_an_odd_form_is_one_line(tmp_path, text):
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(text)
    with pytest.raises(DapdError, match="tokenizer cannot be read") as caught:
        load_tokenizer(tmp_path, TINY_PROFILE)
    assert "\n" not in str(caught.value)


def test_code_of_a_tokenizer_is_not_run(tmp_path, monkeypatch):
    write_tokenizer(tmp_path)
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\nclass Evil: pass\n")
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    monkeypatch.setattr("builtins.input", lambda text="": "yes")
    tokenizer = load_tokenizer(tmp_path, TINY_PROFILE)
    assert tokenizer.decode(tokenizer.encode("ab")) == "ab"
    assert not (tmp_path / "mark").exists()


def test_special_ids_leave_out_the_mask_and_what_ends_a_text(tmp_path):
    assert load_tokenizer(write_tokenizer(tmp_path), TINY_PROFILE).special_ids == (BOS, HEADER, END_HEADER)
    assert ByteTokenizer(SHAPES["tiny-llada"].profile).special_ids == (258,)


def test_the_frame_of_a_text(tmp_path):
    tokenizer = load_tokenizer(write_tokenizer(tmp_path, bos=True), TINY_PROFILE)
    assert tokenizer.frame("ab") == ([BOS, *tokenizer.encode("ab", special=False)], [])
    assert ByteTokenizer(PROFILE).frame("ab") == ([97, 98], [])


def test_folder_without_a_tokenizer(tmp_path):
    assert load_tokenizer(tmp_path, TINY_PROFILE) is None
    (tmp_path / "vocab.json").write_text("{}")
    assert load_tokenizer(tmp_path, TINY_PROFILE) is None


def test_broken_tokenizer_file(tmp_path):
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(DapdError, match=r"tokenizer\.json is not valid JSON"):
        load_tokenizer(tmp_path, TINY_PROFILE)


def test_transformers_not_installed(tmp_path, monkeypatch):
    write_tokenizer(tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(DapdError, match=r"pip install 'dapd\[hub\]'"):
        load_tokenizer(tmp_path, TINY_PROFILE)


def test_bytes_and_back():
    tokenizer = ByteTokenizer(SHAPES["tiny-llada"].profile)
    text = "naïve 東京 🙂\n"
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_bytes_show_what_is_not_a_byte():
    tokenizer = ByteTokenizer(SHAPES["tiny-llada"].profile)
    assert tokenizer.decode([104, 105, 257, 33, 256]) == "hi!"
    assert tokenizer.decode([104, 257, 260], skip_special=False) == "h<257><260>"
    assert tokenizer.decode([104, 260, 0xFF]) == "h<260>\ufffd"


def test_bytes_have_no_chat():
    tokenizer = ByteTokenizer(PROFILE)
    assert not tokenizer.has_chat
    with pytest.raises(DapdError, match="no chat template"):
        tokenizer.chat(QUESTION)


WORDS = ["<eos>", "<mask>", "copy", " copy", " the", " list", "!"]


def closed(folder, **config):
    """A tokenizer of whole words without a token for the unknown ones, as the lab's is, written by its library."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token=None))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(" ?[a-z]+|[^a-z]"), "isolated")
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in WORDS[:2]])
    inner.save(str(folder / "tokenizer.json"))
    content = {"eos_token": "<eos>", "mask_token": "<mask>", "unknown_words_hint": "Ask for help", **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(content))
    return inner


def closed_profile():
    return Profile(mask_id=1, eos_id=0, pad_id=0)


def test_whole_words_are_read_as_their_library_reads_them(tmp_path, monkeypatch):
    inner = closed(tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    tokenizer = load_tokenizer(tmp_path, closed_profile())
    for text in ("copy the list!", "copy<mask> copy<eos>", "copy copy! list"):
        assert tokenizer.encode(text) == inner.encode(text).ids
        assert tokenizer.decode(tokenizer.encode(text), skip_special=False) == text
    assert tokenizer.decode([2, 1, 4, 0]) == "copy the"
    assert tokenizer.special_ids == ()
    assert tokenizer.token_bytes()[5] == b" list"
    assert 0 not in tokenizer.token_bytes()


def test_a_closed_vocabulary_names_the_words_it_lacks(tmp_path):
    closed(tmp_path)
    tokenizer = load_tokenizer(tmp_path, closed_profile())
    assert tokenizer.encode("copy the list") == [2, 4, 5]
    with pytest.raises(DapdError, match=r"does not know 'shuffle', 'quickly': its vocabulary is closed. Ask for help"):
        tokenizer.encode("shuffle the list quickly shuffle")
    with pytest.raises(DapdError, match=r"does not know 'a{40}\.\.\.': its vocabulary is closed"):
        tokenizer.encode("a" * 5000)
    lenient = load_tokenizer(tmp_path, closed_profile(), lenient=True)
    assert lenient.encode("shuffle the list quickly") == [4, 5]


def test_a_template_of_words_gives_the_space_before_a_mask_to_its_token(tmp_path):
    closed(tmp_path)
    assert load_tokenizer(tmp_path, closed_profile()).encode_masked(["copy ", " list"], [2]) == [2, 1, 1, 5]


def test_words_with_a_template_of_their_own_need_the_library(tmp_path, monkeypatch):
    closed(tmp_path, chat_template="{{ messages[0]['content'] }}")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(DapdError, match=r"dapd\[hub\]"):
        load_tokenizer(tmp_path, closed_profile())
