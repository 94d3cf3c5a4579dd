"""Text to ids and back: a checkpoint's own tokenizer through `transformers`, or plain bytes for random weights."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from dapd.errors import DapdError, first_line, missing_extra
from dapd.io.wording import listed
from dapd.models.base import Profile
from dapd.models.chat import Messages, check_messages
from dapd.models.words import WordTokenizer


class Tokenizer(Protocol):
    """The interface of a tokenizer for the rest of the package."""

    @property
    def has_chat(self) -> bool: ...
    @property
    def special_ids(self) -> tuple[int, ...]:
        """The ids that stand for no text, without the mask and those that end a text: a model should not write them."""
        ...

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Ids of a text; with `special` also the tokens that the tokenizer puts around every text."""
        ...

    def encode_masked(self, parts: Sequence[str], counts: Sequence[int], *, special: bool = True) -> list[int]:
        """Ids of a text with masks: parts[0], counts[0] masks, parts[1], and so on to the last part."""
        ...

    def frame(self, text: str) -> tuple[list[int], list[int]]:
        """Ids before and after the masks that continue a text; tokens that close a text stand after them.

        If the tokenizer closes no text, all ids stand before the masks.
        """
        ...

    def chat(self, messages: Messages) -> list[int]:
        """Ids of a conversation, up to where the answer begins."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str: ...

    def token_bytes(self) -> dict[int, bytes]:
        """The bytes that each token adds to a text, whichever tokens surround it; special tokens are left out."""
        ...


class HubTokenizer:
    """A tokenizer of `transformers`; no code of the checkpoint is run."""

    def __init__(self, inner: Any, profile: Profile) -> None:
        self.inner = inner
        self.mask_id = profile.mask_id
        self._ends = {profile.eos_id, profile.eot_id}
        own = inner.mask_token_id
        if own is not None and own != profile.mask_id:
            raise DapdError(f"the tokenizer's mask id is {own}, the model's {profile.mask_id}; they must agree")

    @property
    def has_chat(self) -> bool:
        return self.inner.chat_template is not None

    @property
    def special_ids(self) -> tuple[int, ...]:
        added = {number for number, token in self.inner.added_tokens_decoder.items() if token.special}
        return tuple(sorted((added | set(self.inner.all_special_ids)) - self._ends - {self.mask_id}))

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        try:
            return list(self.inner(text, add_special_tokens=special)["input_ids"])
        except Exception as error:  # the tokenizers library raises bare Exceptions
            raise DapdError(f"the tokenizer cannot read the text: {error}") from None

    def encode_masked(self, parts: Sequence[str], counts: Sequence[int], *, special: bool = True) -> list[int]:
        # Read as one text with the mask's own name in it, so that added tokens and merges across parts come out right.
        mark = str(self.inner.convert_ids_to_tokens(self.mask_id))
        # The space before a mask belongs to the token that will stand there: tokens carry the space before them.
        text = "".join(part.removesuffix(" ") + mark * n for part, n in zip(parts, counts, strict=False)) + parts[-1]
        ids = self.encode(text, special=special)
        if ids.count(self.mask_id) != sum(counts):
            raise DapdError(f"the tokenizer does not read its own mask token {mark!r}; give the template as token ids")
        lost = self._lost(text)
        if lost:
            raise DapdError(
                f"the tokenizer does not know {listed(lost)}: that part of the template would vanish from the text; "
                "write it in other words, or give the template as token ids"
            )
        return ids

    def _lost(self, text: str) -> list[str]:
        """The words of a text that become the unknown token, or no token at all."""
        if not self.inner.is_fast:
            pieces = self.inner.tokenize(text)
            return [] if self.inner.unk_token not in pieces or self.inner.unk_token in text else ["a word"]
        read = self.inner(text, add_special_tokens=False, return_offsets_mapping=True)
        ends = list(zip(read["input_ids"], read["offset_mapping"], strict=True))
        unknown = {text[a:b] for i, (a, b) in ends if i == self.inner.unk_token_id} - {self.inner.unk_token}
        covered = {place for _, (a, b) in ends for place in range(a, b)}
        words = [(word.group(), range(*word.span())) for word in re.finditer(r"\S+", text)]
        return [*sorted(unknown), *(word for word, places in words if covered.isdisjoint(places))]

    def frame(self, text: str) -> tuple[list[int], list[int]]:
        mark = str(self.inner.convert_ids_to_tokens(self.mask_id))
        ids = self.encode(text.removesuffix(" ") + mark)
        # A tokenizer may close nothing, or have no name for the mask.
        if self.mask_id not in ids or ids[-1] == self.mask_id:
            return self.encode(text), []
        place = len(ids) - 1 - ids[::-1].index(self.mask_id)
        return ids[:place], ids[place + 1 :]

    def chat(self, messages: Messages) -> list[int]:
        if not self.has_chat:
            raise DapdError("the model has no chat template; give plain text (--raw) instead of messages")
        check_messages(messages)
        # The template writes every special token itself: adding more would double the beginning of the text.
        try:
            text = self.inner.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        except Exception as error:  # a template is a program of the checkpoint's, and raises what it likes
            raise DapdError(
                f"the model's chat template does not take this conversation: {first_line(error)}; give other messages, "
                "or plain text (--raw)"
            ) from None
        return self.encode(str(text), special=False)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return str(self.inner.decode(list(ids), skip_special_tokens=skip_special))

    def token_bytes(self) -> dict[int, bytes]:
        decoder = (json.loads(self.inner.backend_tokenizer.to_str()).get("decoder") or {}).get("type")
        if decoder not in ("ByteLevel", "Fuse"):
            raise DapdError(
                f"this tokenizer ({decoder}) joins tokens by rules of its own, so that no form can be promised; "
                "forms need a tokenizer of bytes or of whole words"
            )
        added = {i: token.content for i, token in self.inner.added_tokens_decoder.items()}
        special = {*self.special_ids, self.mask_id, *self._ends, *self.inner.all_special_ids}
        letters = byte_letters() if decoder == "ByteLevel" else None
        out = {}
        for text, number in self.inner.get_vocab().items():
            if number in special:
                continue
            if letters is None or number in added:
                out[number] = text.encode()
            elif all(letter in letters for letter in text):
                out[number] = bytes(letters[letter] for letter in text)
        return out


@cache
def byte_letters() -> dict[str, int]:
    """The byte that each letter of a byte-level tokenizer stands for: a visible byte is its own letter, the others have
    letters from 256 on."""
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    unseen = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(256 + place): byte for place, byte in enumerate(unseen)}


class ByteTokenizer:
    """UTF-8 bytes as ids 0..255, everything above shown as `<id>`: enough to try a model with random weights."""

    has_chat = False

    def __init__(self, profile: Profile) -> None:
        self.mask_id = profile.mask_id
        self._ends = {profile.eos_id, profile.eot_id}
        self.special = {*profile.special, *(value for value in vars(profile).values() if isinstance(value, int))}

    @property
    def special_ids(self) -> tuple[int, ...]:
        return tuple(sorted(self.special - self._ends - {self.mask_id}))

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return list(text.encode())

    def frame(self, text: str) -> tuple[list[int], list[int]]:
        return self.encode(text), []

    def encode_masked(self, parts: Sequence[str], counts: Sequence[int], *, special: bool = True) -> list[int]:
        ids = self.encode(parts[0])
        for n, part in zip(counts, parts[1:], strict=True):
            ids += [self.mask_id] * n + self.encode(part)
        return ids

    def chat(self, messages: Messages) -> list[int]:
        raise DapdError("random weights have no chat template; give plain text (--raw) instead of messages")

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        out = []
        run = bytearray()
        for i in ids:
            if i < 256:
                run.append(i)
                continue
            out.append(run.decode(errors="replace"))
            run.clear()
            if not (skip_special and i in self.special):
                out.append(f"<{i}>")
        return "".join(out) + run.decode(errors="replace")

    def token_bytes(self) -> dict[int, bytes]:
        return {byte: bytes([byte]) for byte in range(256) if byte not in self.special}


def load_tokenizer(folder: Path, profile: Profile, *, lenient: bool = False) -> Tokenizer | None:
    """The tokenizer of a checkpoint folder; None where it has none. `lenient`: leave out words it does not know."""
    if not _has(folder, "tokenizer.json") and not _has(folder, "vocab.json", "merges.txt"):
        return None
    words = WordTokenizer.read(folder, profile, lenient=lenient) if _has(folder, "tokenizer.json") else None
    return words or HubTokenizer(_open(folder), profile)


def _has(folder: Path, *names: str) -> bool:
    return all((folder / name).is_file() for name in names)


def _open(folder: Path) -> Any:
    try:
        from transformers import PreTrainedTokenizerFast, Qwen2Tokenizer
    except ImportError:
        raise missing_extra("transformers", "hub", "reading the tokenizer") from None
    # Dream names a class of its own that only remote code defines; its files are Qwen2's byte-level BPE.
    kind = PreTrainedTokenizerFast if _has(folder, "tokenizer.json") else Qwen2Tokenizer
    return _read(kind, folder)


FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model", "spm.model")
"""Files in which the tokenizers of `transformers` keep their vocabularies."""


def open_auto_tokenizer(folder: Path) -> Any:
    """The tokenizer of a folder, of the class that it names. A folder without vocabulary files is refused, for which
    `transformers` would make up a tokenizer of nothing but special tokens."""
    from transformers import AutoTokenizer

    if not any(_has(folder, name) for name in (*FILES, "tokenizer.model")):
        raise DapdError(f"{folder} has no tokenizer: copy its files ({', '.join(FILES[:3])}, ...) into this folder")
    inner = _read(AutoTokenizer, folder)
    if set(inner.get_vocab().values()) <= set(inner.all_special_ids):
        raise DapdError(
            f"{folder}: the tokenizer knows special tokens only; its vocabulary ({', '.join(FILES[:3])}, ...) is "
            "missing, or of another class than tokenizer_config.json says"
        )
    return inner


def _read(kind: Any, folder: Path) -> Any:
    try:
        with quiet():
            return kind.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
    except Exception as error:  # the tokenizers library raises bare Exceptions
        raise DapdError(f"{folder}: the tokenizer cannot be read: {first_line(error)}") from None


@contextmanager
def quiet() -> Iterator[None]:
    """Inside this context `transformers` draws no progress bars and logs nothing below an error."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
