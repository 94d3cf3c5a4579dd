"""The tokenizer: exact round trips, closed vocabulary, the same ids through transformers."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from dapd.errors import DapdError
from dapd.lab.tasks import TASKS, Task, pieces
from dapd.lab.tokenizer import BOS, EOS, MASK, SPECIALS, LabTokenizer, vocabulary
from dapd.models.words import TURN_END

EVERY = pytest.mark.parametrize("task", TASKS.values(), ids=list(TASKS))


@pytest.fixture(scope="module")
def tokenizer() -> LabTokenizer:
    return LabTokenizer.build()


@pytest.fixture(scope="module")
def folder(tokenizer: LabTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(path)
    return path


@EVERY
def test_round_trip(task: Task, tokenizer: LabTokenizer) -> None:
    rng = random.Random(0)
    for _ in range(1500):
        example = task.draw(rng)
        for text in (example.prompt, example.answer):
            ids = tokenizer.encode(text)
            assert tokenizer.decode(ids) == text
            assert tokenizer.tokens(ids) == pieces(text)


def test_indentation_and_signs_of_python_are_tokens(tokenizer: LabTokenizer) -> None:
    text = "def f(n):\n    if n >= 2:\n        return n ** 2\n    return n"
    text = text.replace("f(", "sum_even(")
    assert pieces(text)[:7] == ["def", " sum", "_", "even", "(", "n", ")"]
    assert {"\n    ", "\n        ", " >=", " **"} <= set(pieces(text))
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_vocabulary_is_the_same_every_time(tokenizer: LabTokenizer) -> None:
    vocabulary.cache_clear()
    again = vocabulary()
    assert again == tokenizer.vocabulary
    assert list(again)[: len(SPECIALS)] == list(SPECIALS)
    assert sorted(again.values()) == list(range(len(again)))
    assert not any("unk" in token for token in again)


def test_unknown_words_are_named(tokenizer: LabTokenizer) -> None:
    with pytest.raises(DapdError, match=r"'Xylophone', 'qux'.*dapd lab prompts"):
        tokenizer.encode("Shuffle the list: Xylophone, qux")


@pytest.mark.parametrize("text", ["Shuffle  the list", "Shuffle\tthe list", "Shuffle the list: é", "Shuffle the list "])
def test_nothing_vanishes_in_silence(text: str, tokenizer: LabTokenizer) -> None:
    with pytest.raises(DapdError):
        tokenizer.encode(text)


def test_decode_stops_at_the_end(tokenizer: LabTokenizer) -> None:
    ids = tokenizer.encode("1 2")
    assert tokenizer.decode([*ids, tokenizer.eot_id, *ids]) == "1 2"
    assert tokenizer.decode([*ids, tokenizer.eos_id, *ids]) == "1 2"
    assert tokenizer.decode([tokenizer.mask_id, *ids]) == "1 2"
    assert tokenizer.encode(f"1{MASK} 2")[1] == tokenizer.mask_id


def test_load(folder: Path, tokenizer: LabTokenizer, tmp_path: Path) -> None:
    assert LabTokenizer.load(folder).vocabulary == tokenizer.vocabulary
    with pytest.raises(DapdError, match=r"no tokenizer\.json"):
        LabTokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(DapdError, match="not a tokenizer of the lab"):
        LabTokenizer.load(tmp_path)


@pytest.mark.parametrize("name", ["PreTrainedTokenizerFast", "AutoTokenizer"])
def test_transformers_reads_it(name: str, folder: Path, tokenizer: LabTokenizer) -> None:
    transformers = pytest.importorskip("transformers")
    (folder / "config.json").write_text(json.dumps({"model_type": "llada", "architectures": ["LLaDAModelLM"]}))
    other = getattr(transformers, name).from_pretrained(folder)
    assert (other.bos_token, other.eos_token, other.pad_token, other.mask_token) == (BOS, EOS, EOS, MASK)
    assert other.unk_token is None
    rng = random.Random(1)
    for task in TASKS.values():
        example = task.draw(rng)
        assert other(example.answer, add_special_tokens=False)["input_ids"] == tokenizer.encode(example.answer)
        assert other.decode(tokenizer.encode(example.answer)) == example.answer
        messages = [{"role": "user", "content": f" {example.prompt}\n"}]
        text = other.apply_chat_template(messages, tokenize=False)
        assert text.count(BOS) == 1
        assert text.endswith("<|start_header_id|>assistant<|end_header_id|>\n\n")
        ids = other(text, add_special_tokens=False)["input_ids"]
        assert ids == tokenizer.chat(example.prompt)
        assert ids.count(tokenizer.vocabulary[TURN_END]) == 1


def test_backend_refuses_unknown_words(tokenizer: LabTokenizer) -> None:
    with pytest.raises(Exception, match="UNK"):
        tokenizer.backend.encode("Xylophone")
