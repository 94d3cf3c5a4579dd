"""Conversations: lists of messages with a role and a content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dapd.errors import DapdError, unknown

Message = dict[str, str]
Messages = Sequence[Message]
"""Messages with a role and a content, in their order."""
ROLES = ("system", "user", "assistant", "tool")


def check_messages(messages: Messages) -> None:
    """Refuse anything that is not a conversation, before a chat template fails on it."""
    if not messages:
        raise DapdError("the conversation is empty; give at least one message")
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or {"role", "content"} - message.keys():
            raise DapdError(f'message {number} is not of the form {{"role": ..., "content": ...}}')
        if message["role"] not in ROLES:
            raise unknown(f"role of message {number}", str(message["role"]), ROLES)
        check_text(str(message["content"]))


def check_text(text: str) -> None:
    """Refuse lone surrogates, which no tokenizer takes: bytes that are not UTF-8 become surrogates on a command line or
    standard input, and JSON can hold them."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        place = error.start + 1
        raise DapdError(f"the text is not UTF-8 at character {place} (surrogates not allowed); convert it") from None


def read_prompt(value: Any, where: str) -> str | list[Message]:
    """A prompt from a value in a file: a text, an object with `prompt` or `messages`, or a list of messages."""
    if isinstance(value, dict):
        if value.get("prompt") is not None and value.get("messages") is not None:
            raise DapdError(f"{where} has both a prompt and messages; give one of them")
        value = value.get("prompt") if value.get("messages") is None else value["messages"]
    return value if isinstance(value, str) and value.strip() else read_conversation(value, where)


def read_conversation(value: Any, where: str) -> list[Message]:
    """Messages with a role and a content, or an error that says what they should be."""
    fine = (
        isinstance(value, list)
        and value
        and all(
            isinstance(one, dict) and isinstance(one.get("role"), str) and isinstance(one.get("content"), str)
            for one in value
        )
    )
    if not fine:
        raise DapdError(
            f'{where} is not a prompt: give a text, {{"prompt": text}} or {{"messages": [...]}}, where every message '
            f'is {{"role": text, "content": text}}'
        )
    return [{"role": one["role"], "content": one["content"]} for one in value]
