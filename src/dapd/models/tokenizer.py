"""Text to ids and back: a checkpoint's own tokenizer through `transformers`, or plain bytes for random weights."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from dapd.errors import DapdError, missing_extra
from dapd.models.base import Profile

Messages = Sequence[dict[str, str]]


class Tokenizer(Protocol):
    """What the rest of the package needs of a tokenizer."""

    @property
    def has_chat(self) -> bool: ...
    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Ids of a text; `special` adds what the tokenizer puts around a text of its own accord."""
        ...

    def encode_masked(self, parts: Sequence[str], counts: Sequence[int], *, special: bool = True) -> list[int]:
        """Ids of a text with masks: parts[0], counts[0] masks, parts[1], and so on to the last part."""
        ...

    def chat(self, messages: Messages) -> list[int]:
        """Ids of a conversation, up to where the answer begins."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str: ...


class HubTokenizer:
    """A tokenizer of `transformers`; no code of the checkpoint is run."""

    def __init__(self, inner: Any, profile: Profile, *, lenient: bool = False) -> None:
        self.inner, self.mask_id, self.lenient = inner, profile.mask_id, lenient
        found = inner.mask_token_id
        if found is not None and found != profile.mask_id:
            raise DapdError(f"the tokenizer's mask id is {found}, the model's {profile.mask_id}; they must agree")

    @property
    def has_chat(self) -> bool:
        return self.inner.chat_template is not None

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        try:
            return list(self.inner(text, add_special_tokens=special)["input_ids"])
        except Exception as error:  # the tokenizers library raises bare Exceptions
            words = self._unknown(text)
            if not words:
                raise DapdError(f"the tokenizer cannot read the text: {error}") from None
            if self.lenient:
                return self.encode(self._known(text), special=special)
            shown = ", ".join(map(repr, words[:8])) + (f" and {len(words) - 8} more" if len(words) > 8 else "")
            hint = self.inner.init_kwargs.get("unknown_words_hint", "")
            raise DapdError(f"the model does not know {shown}: its vocabulary is closed. {hint}".strip()) from None

    def _unknown(self, text: str) -> list[str]:
        """The words of a text that a closed vocabulary lacks."""
        known = self.inner.get_vocab()
        return list(dict.fromkeys(piece.strip() or piece for piece in self._pieces(text) if piece not in known))

    def _known(self, text: str) -> str:
        """A text without the words that a closed vocabulary lacks."""
        known = self.inner.get_vocab()
        return "".join(piece for piece in self._pieces(text) if piece in known)

    def _pieces(self, text: str) -> list[str]:
        """A text cut up as the tokenizer does it before it looks at its vocabulary; special tokens stay whole."""
        split = self.inner.backend_tokenizer.pre_tokenizer
        special = set(self.inner.get_added_vocab())
        parts = re.split(f"({'|'.join(map(re.escape, special))})", text) if special else [text]
        return [
            piece
            for part in parts
            for piece in ([part] if part in special or not split else [p for p, _ in split.pre_tokenize_str(part)])
        ]

    def encode_masked(self, parts: Sequence[str], counts: Sequence[int], *, special: bool = True) -> list[int]:
        # One text with the mask's own name in it: what is added around a text, and merges across parts, come out right.
        mark = str(self.inner.convert_ids_to_tokens(self.mask_id))
        # The space before a mask belongs to the token that will stand there: tokens carry the space before them.
        text = "".join(part.removesuffix(" ") + mark * n for part, n in zip(parts, counts, strict=False)) + parts[-1]
        ids = self.encode(text, special=special)
        if ids.count(self.mask_id) != sum(counts):
            raise DapdError(f"the tokenizer does not read its own mask token {mark!r}; give the template as token ids")
        return ids

    def chat(self, messages: Messages) -> list[int]:
        if not self.has_chat:
            raise DapdError("the model has no chat template; give plain text (--raw) instead of messages")
        _check_messages(messages)
        # The template writes every special token itself: adding more would double the beginning of the text.
        text = self.inner.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        return self.encode(text, special=False)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return str(self.inner.decode(list(ids), skip_special_tokens=skip_special))


class ByteTokenizer:
    """UTF-8 bytes as ids 0..255, everything above shown as `<id>`: enough to try a model with random weights."""

    has_chat = False

    def __init__(self, profile: Profile) -> None:
        self.mask_id = profile.mask_id
        self.special = {value for value in vars(profile).values() if value is not None}

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return list(text.encode())

    def encode_masked(self, parts: Sequence[str], counts: Sequence[int], *, special: bool = True) -> list[int]:
        ids = self.encode(parts[0])
        for n, part in zip(counts, parts[1:], strict=True):
            ids += [self.mask_id] * n + self.encode(part)
        return ids

    def chat(self, messages: Messages) -> list[int]:
        raise DapdError("random weights have no chat template; give plain text (--raw) instead of messages")

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        out, run = [], bytearray()
        for i in ids:
            if i < 256:
                run.append(i)
                continue
            out.append(run.decode(errors="replace"))
            run.clear()
            if not (skip_special and i in self.special):
                out.append(f"<{i}>")
        return "".join(out) + run.decode(errors="replace")


def load_tokenizer(folder: Path, profile: Profile, *, lenient: bool = False) -> Tokenizer | None:
    """The tokenizer of a checkpoint folder; None where it has none. `lenient`: leave out words it does not know."""
    if not _has(folder, "tokenizer.json") and not _has(folder, "vocab.json", "merges.txt"):
        return None
    return HubTokenizer(_open(folder), profile, lenient=lenient)


def _has(folder: Path, *names: str) -> bool:
    return all((folder / name).is_file() for name in names)


def _open(folder: Path) -> Any:
    try:
        from transformers import PreTrainedTokenizerFast, Qwen2Tokenizer
    except ImportError:
        raise missing_extra("transformers", "hub", "reading the tokenizer") from None
    # Dream names a class of its own that only remote code defines; its files are Qwen2's byte-level BPE.
    kind = PreTrainedTokenizerFast if _has(folder, "tokenizer.json") else Qwen2Tokenizer
    try:
        return kind.from_pretrained(str(folder))
    except Exception as error:  # the tokenizers library raises bare Exceptions
        raise DapdError(f"{folder}: the tokenizer cannot be read: {str(error).splitlines()[0]}") from None


def _check_messages(messages: Messages) -> None:
    if not messages:
        raise DapdError("the conversation is empty; give at least one message")
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or {"role", "content"} - message.keys():
            raise DapdError(f'message {number} is not of the form {{"role": ..., "content": ...}}')
