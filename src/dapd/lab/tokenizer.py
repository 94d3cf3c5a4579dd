"""The lab's tokenizer: a closed vocabulary of words, digits and signs, built from the tasks.

A token carries the space before it, so that joining tokens gives the text back, character by character. There is no
token for unknown words: a word outside of the vocabulary is an error that names it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapd.errors import DapdError, missing_extra
from dapd.io.wording import listed
from dapd.lab.tasks import TASKS
from dapd.lab.tasks.base import PIECE, pieces
from dapd.models.words import HEADER, HEADER_END, LLADA_CHAT, TURN_END

if TYPE_CHECKING:
    from tokenizers import Tokenizer

EOS, BOS, MASK = "<|endoftext|>", "<|startoftext|>", "<|mdm_mask|>"
SPECIALS = (EOS, BOS, MASK, HEADER, HEADER_END, TURN_END)
"""The special tokens in the order of their ids, from 0. Their names are LLaDA's; EOS is also the padding."""

HINT = "See what it can do with: dapd lab prompts"
"""Advice that ends every error about words that are not in the vocabulary."""

SIGNS = ". , ? ! : ; + - = * / _ # ' \" ( ) [ ] { } % < >"

_SPECIAL = re.compile("|".join(map(re.escape, SPECIALS)))


@cache
def vocabulary() -> dict[str, int]:
    """Token -> id: the special tokens, then every word of the tasks with and without a space before it."""
    texts = [text for task in TASKS.values() for text in task.words()]
    words = {piece.removeprefix(" ") for text in texts for piece in pieces(text)}
    words |= {"system", "user", "assistant", "\n", "\n\n", *SIGNS.split(), *map(str, range(10))}
    forms = {form for word in words for form in ((word, f" {word}") if _spaced(word) else (word,))}
    return {token: number for number, token in enumerate([*SPECIALS, *sorted(forms)])}


def _spaced(word: str) -> bool:
    return pieces(f" {word}") == [f" {word}"]


class LabTokenizer:
    """Text to ids and back, for any checkpoint folder of the lab."""

    def __init__(self, vocabulary: dict[str, int]) -> None:
        self.vocabulary = vocabulary
        self._texts = {number: token for token, number in vocabulary.items()}
        self.eos_id = vocabulary[EOS]
        self.bos_id = vocabulary[BOS]
        self.mask_id = vocabulary[MASK]
        self.eot_id = vocabulary[TURN_END]

    @classmethod
    def build(cls) -> LabTokenizer:
        return cls(vocabulary())

    @classmethod
    def load(cls, folder: Path) -> LabTokenizer:
        """The tokenizer of a checkpoint folder."""
        try:
            model = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
            return cls({str(token): int(number) for token, number in model["vocab"].items()})
        except FileNotFoundError:
            raise DapdError(f"{folder} has no tokenizer.json") from None
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError):
            raise DapdError(f"{folder / 'tokenizer.json'} is not a tokenizer of the lab") from None

    def __len__(self) -> int:
        return len(self.vocabulary)

    def encode(self, text: str) -> list[int]:
        """Ids of a text, which may contain special tokens."""
        known = self.vocabulary
        words = pieces(text)
        if "<|" not in text and all(map(known.__contains__, words)) and "".join(words) == text:
            return [known[piece] for piece in words]
        ids: list[int] = []
        unknown: list[str] = []
        for part in self._parts(text):
            number = self.vocabulary.get(part)
            if number is None:
                unknown.append(part)
            else:
                ids.append(number)
        if unknown:
            raise unknown_words(unknown)
        return ids

    def _parts(self, text: str) -> Iterable[str]:
        """The tokens of a text in order, and between them everything else that it contains, which `encode` refuses."""
        start = 0
        for special in [*_SPECIAL.finditer(text), None]:
            plain = text[start : special.start() if special else len(text)]
            words = pieces(plain)
            # Repeated spaces and tabs belong to no piece: they must be refused, not silently dropped.
            yield from words if "".join(words) == plain else re.findall(f"{PIECE}|\\s", plain)
            if special:
                yield special.group()
                start = special.end()

    def chat(self, prompt: str) -> list[int]:
        """Ids of a single user message with the assistant's header after it, as the chat template gives them."""
        before, after = self._frame
        return [*before, *self.encode(prompt.strip()), *after]

    @cached_property
    def _frame(self) -> tuple[list[int], list[int]]:
        before = f"{BOS}{HEADER}user{HEADER_END}\n\n"
        return self.encode(before), self.encode(f"{TURN_END}{HEADER}assistant{HEADER_END}\n\n")

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The tokens of an answer up to its end, as strings."""
        ends = [i for i, number in enumerate(ids) if number in (self.eos_id, self.eot_id)]
        return [self._texts.get(int(number), "") for number in ids[: ends[0] if ends else len(ids)]]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of an answer before its first end token, without special tokens."""
        return "".join(token for token in self.tokens(ids) if token not in SPECIALS)

    @cached_property
    def backend(self) -> Tokenizer:
        """The same tokenizer as an object of the `tokenizers` library."""
        try:
            from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
        except ImportError:
            raise missing_extra("tokenizers", "hub", "writing a tokenizer.json") from None
        tokenizer = Tokenizer(models.WordLevel(self.vocabulary, unk_token=None))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PIECE), "isolated")
        tokenizer.decoder = decoders.Fuse()
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
        return tokenizer

    def save(self, folder: Path) -> None:
        """Write tokenizer.json and tokenizer_config.json; transformers reads them with no code of ours."""
        self.backend.save(str(folder / "tokenizer.json"))
        config: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BOS,
            "eos_token": EOS,
            "pad_token": EOS,
            "mask_token": MASK,
            "padding_side": "left",
            "clean_up_tokenization_spaces": False,
            "model_input_names": ["input_ids", "attention_mask"],
            "chat_template": LLADA_CHAT,
            "unknown_words_hint": HINT,
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def unknown_words(words: Iterable[str]) -> DapdError:
    """The error for words that the lab model has never seen."""
    shown = listed(list(dict.fromkeys(word.strip(" ") or word for word in words)))
    return DapdError(
        f"the lab model does not know {shown}: its vocabulary is closed, it was trained on a few tasks only. {HINT}"
    )
