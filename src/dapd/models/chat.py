"""Conversations."""

from __future__ import annotations

from collections.abc import Sequence

from dapd.errors import DapdError

Messages = Sequence[dict[str, str]]
"""Messages with a role (system, user, assistant) and a content, in their order."""


def check_messages(messages: Messages) -> None:
    """Refuse what is no conversation, before a template looks at it."""
    if not messages:
        raise DapdError("the conversation is empty; give at least one message")
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or {"role", "content"} - message.keys():
            raise DapdError(f'message {number} is not of the form {{"role": ..., "content": ...}}')
