"""Where the prompts of `dapd generate` come from: an argument, standard input, a text file, JSON, or JSON lines."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapd.errors import DapdError, first_line, reason
from dapd.generation import DiffusionLM, Prompt
from dapd.io.files import parse_json
from dapd.models.chat import Message, read_conversation, read_prompt


@dataclass(frozen=True)
class Source:
    """The prompt as the user named it: by an argument, a file, or neither (standard input)."""

    prompt: str | None = None
    """The argument; None or '-': standard input, unless there is a file."""
    file: Path | None = None
    """A text, or prompts as JSON lines where its name ends in `.jsonl`."""
    messages: Path | None = None
    """A conversation as a JSON list of messages."""
    system: str | None = None
    """A system message that opens the conversation."""
    raw: bool = False
    """Whether a text is continued as it stands instead of being answered."""

    def __post_init__(self) -> None:
        given = [name for name in ("prompt", "file", "messages") if getattr(self, name) not in (None, "-")]
        if len(given) > 1:
            raise DapdError(f"a {given[0]} and --{given[1]} were both given; give one of them")
        if self.raw and (self.system is not None or self.messages is not None):
            raise DapdError("--raw continues a text as it stands; it takes no --system and no --messages")

    @property
    def is_named(self) -> bool:
        """Whether the user named a prompt; '-' names standard input."""
        return self.prompt is not None or self.file is not None or self.messages is not None

    @property
    def reads_standard_input(self) -> bool:
        return self.prompt in (None, "-") and self.file is None and self.messages is None

    def read(self) -> list[str | list[Message]]:
        """The prompts: texts, or conversations."""
        if self.messages is not None:
            return [read_conversation(_json(self.messages, _text(self.messages)), str(self.messages))]
        if self.file is not None and self.file.suffix == ".jsonl":
            return _lines(self.file)
        if self.file is not None:
            text = _text(self.file).strip()
        elif self.reads_standard_input:
            text = _standard_input()
        else:
            text = str(self.prompt)
        if not text.strip():
            raise DapdError("the prompt is empty" if self.file is None else f"the prompt in {self.file} is empty")
        return [text]

    def asked(self, lm: DiffusionLM, prompts: list[str | list[Message]]) -> list[Prompt]:
        """The prompts as the model takes them."""
        return [self._one(lm, prompt) for prompt in prompts]

    def _one(self, lm: DiffusionLM, prompt: str | list[Message]) -> Prompt:
        return prompt if self.raw and isinstance(prompt, str) else lm.question(prompt, self.system)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DapdError(f"cannot read the prompt from {path}: {reason(error)}") from None


def _standard_input() -> str:
    if sys.stdin.isatty():
        raise DapdError("no prompt: give one as an argument, with --file, or on standard input")
    try:
        return sys.stdin.read().strip()
    except UnicodeDecodeError as error:
        raise DapdError(f"cannot read the prompt from standard input: {error}") from None


def _json(where: object, text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise DapdError(f"{where} is not JSON: {first_line(error)}") from None


def _lines(path: Path) -> list[str | list[Message]]:
    """A prompt from every line: a string, an object with `prompt` or `messages`, or a list of messages."""
    prompts: list[str | list[Message]] = []
    # Not splitlines(): a prompt may hold separators that count as line ends there and not in JSON.
    for number, line in enumerate(_text(path).split("\n"), 1):
        if line.strip():
            where = f"line {number} of {path}"
            prompts.append(read_prompt(_json(where, line), where))
    if not prompts:
        raise DapdError(f"{path} holds no prompts")
    return prompts
