"""The tokenizer of a closed vocabulary of whole words, such as the shipped model's, read without any other library."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dapd.errors import DapdError
from dapd.io.wording import listed
from dapd.models.base import Profile
from dapd.models.chat import Messages, check_messages
from dapd.models.checkpoint import read_json

HEADER, HEADER_END, TURN_END = "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"

# Jinja drops a newline at the very end of a template, hence the newlines as an expression.
LLADA_CHAT = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    f"{HEADER}{{{{ message['role'] }}}}{HEADER_END}{{{{ '\\n\\n' }}}}{{{{ message['content'] | trim }}}}{TURN_END}"
    "{% endfor %}"
    f"{HEADER}assistant{HEADER_END}{{{{ '\\n\\n' }}}}"
)
"""LLaDA's chat format as a template. Like LLaDA's, it always ends with the assistant's header."""
SHOWN = 40
"""Characters of an unknown word in an error message: a longer word would hide the advice after it."""


class WordTokenizer:
    """Text to ids and back by a list of words: a token carries the space before it, and unknown words have no token.

    With `lenient`, words that the vocabulary lacks are left out; otherwise they are an error that names them.
    """

    def __init__(
        self,
        words: Mapping[str, int],
        special: Sequence[str],
        pattern: str,
        profile: Profile,
        config: Mapping[str, Any],
        *,
        lenient: bool = False,
    ) -> None:
        self.words = words
        self.texts = {number: text for text, number in words.items()}
        self.special = {text: words[text] for text in special}
        self.pattern = re.compile("|".join([*map(re.escape, special), pattern, r"[\s\S]"]))
        self.mask_id = profile.mask_id
        self.bos = str(config.get("bos_token", ""))
        self.has_chat = config.get("chat_template") == LLADA_CHAT
        self.hint = str(config.get("unknown_words_hint", ""))
        self.lenient = lenient
        self._ends = {profile.eos_id, profile.eot_id}

    @classmethod
    def read(cls, folder: Path, profile: Profile, *, lenient: bool = False) -> WordTokenizer | None:
        """The tokenizer of a checkpoint folder; None where its `tokenizer.json` describes one of another kind."""
        content = read_json(folder / "tokenizer.json")
        try:
            pattern = content["pre_tokenizer"]["pattern"]["Regex"]
            fitting = content["model"]["type"] == "WordLevel" and content["decoder"]["type"] == "Fuse"
            words = {str(text): int(number) for text, number in content["model"]["vocab"].items()}
            special = [str(token["content"]) for token in content["added_tokens"]]
        except (KeyError, TypeError, ValueError, AttributeError):
            return None
        path = folder / "tokenizer_config.json"
        config = read_json(path) if path.is_file() else {}
        if not fitting or config.get("chat_template") not in (None, LLADA_CHAT):
            return None
        return cls(words, special, pattern, profile, config, lenient=lenient)

    @property
    def special_ids(self) -> tuple[int, ...]:
        return tuple(sorted({*self.special.values()} - self._ends - {self.mask_id}))

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        pieces = self.pattern.findall(text)
        unknown = [piece for piece in pieces if piece not in self.words]
        if unknown and not self.lenient:
            shown = listed(list(dict.fromkeys(_short(piece.strip(" ") or piece) for piece in _whole(unknown))))
            advice = f"{self.hint}; the model lab:any-text leaves such words out"
            raise DapdError(f"the model does not know {shown}: its vocabulary is closed. {advice}")
        return [self.words[piece] for piece in pieces if piece in self.words]

    def encode_masked(self, parts: Sequence[str], counts: Sequence[int], *, special: bool = True) -> list[int]:
        # The space before a mask belongs to the token that will stand there: tokens carry the space before them.
        ids: list[int] = []
        for part, n in zip(parts, counts, strict=False):
            ids += [*self.encode(part.removesuffix(" ")), *[self.mask_id] * n]
        return [*ids, *self.encode(parts[-1])]

    def frame(self, text: str) -> tuple[list[int], list[int]]:
        return self.encode(text), []

    def chat(self, messages: Messages) -> list[int]:
        if not self.has_chat:
            raise DapdError("the model has no chat template; give plain text (--raw) instead of messages")
        check_messages(messages)
        turns = "".join(
            f"{HEADER}{message['role']}{HEADER_END}\n\n{message['content'].strip()}{TURN_END}" for message in messages
        )
        return self.encode(f"{self.bos}{turns}{HEADER}assistant{HEADER_END}\n\n")

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        texts = (self.texts.get(int(number), "") for number in ids)
        return "".join(text for text in texts if not (skip_special and text in self.special))

    def token_bytes(self) -> dict[int, bytes]:
        return {number: text.encode() for text, number in self.words.items() if text not in self.special}


def _short(piece: str) -> str:
    """A word, cut to the length that an error message has room for."""
    return piece if len(piece) <= SHOWN else f"{piece[:SHOWN]}..."


def _whole(pieces: Sequence[str]) -> Iterator[str]:
    """The pieces that are not blank, or all pieces if all are blank: nobody could find a quoted blank in a text."""
    shown = [piece for piece in pieces if piece.strip()]
    yield from shown or pieces
