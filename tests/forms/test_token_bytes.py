"""The bytes of tokens, on which every promise about a form stands: joined, they are the text."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("tokenizers")

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

import dapd
from dapd.errors import DapdError
from dapd.models.base import Profile
from dapd.models.tokenizer import HubTokenizer

TEXTS = [
    '{"name": "Zoë", "日本": [1, 2]}',
    "def f(x):\n    return x + 1",
    "naïve café – the quick brown fox",
    "🙂🙃 ok",
] * 20


def hub(decoder: object) -> HubTokenizer:
    """A byte-level tokenizer like LLaDA's and Dream's, with special tokens and one that is added and not special."""
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoder
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False))
    made.add_special_tokens([AddedToken(t, special=True) for t in ("<eos>", "<mask>", "<eot>")])
    made.add_tokens(["<tool é>"])
    inner = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<eos>", mask_token="<mask>")
    ids = {name: inner.convert_tokens_to_ids(name) for name in ("<eos>", "<mask>", "<eot>")}
    return HubTokenizer(inner, Profile(ids["<mask>"], ids["<eos>"], ids["<eos>"], ids["<eot>"]))


def test_bytes_joined_are_the_text_of_a_byte_level_tokenizer():
    tokenizer = hub(decoders.ByteLevel())
    known = tokenizer.token_bytes()
    for text in TEXTS[:4]:
        ids = tokenizer.encode(text, special=False)
        assert b"".join(known[i] for i in ids).decode() == text
    added = tokenizer.encode("<tool é>", special=False)
    assert [known[i] for i in added] == ["<tool é>".encode()]
    rng = random.Random(0)
    plain = [i for i in known if i not in added]
    for _ in range(300):
        ids = rng.choices(plain, k=6)
        assert b"".join(known[i] for i in ids).decode(errors="replace") == tokenizer.decode(ids)
    assert not {tokenizer.inner.convert_tokens_to_ids(t) for t in ("<eos>", "<mask>", "<eot>")} & set(known)


def test_a_tokenizer_with_rules_of_its_own_is_refused():
    with pytest.raises(DapdError, match="no form can be promised"):
        hub(decoders.WordPiece()).token_bytes()


@pytest.mark.parametrize("name", ["lab", "random:tiny-llada", "random:tiny-dream"])
def test_bytes_joined_are_the_text_of_the_other_models(name):
    tokenizer = dapd.load(name, device="cpu").tokenizer
    known = tokenizer.token_bytes()
    rng = random.Random(0)
    for _ in range(200):
        ids = rng.choices(list(known), k=6)
        assert b"".join(known[i] for i in ids).decode(errors="replace") == tokenizer.decode(ids)
