"""From lm-eval's requests to token ids, and from generated ids to the answer that is scored."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from dapd.errors import DapdError
from dapd.evaluation.harness.options import Chat
from dapd.models.tokenizer import Tokenizer

CONVERSATION = "conversation:"
"""The beginning of a prompt that is a list of messages as JSON: lm-eval passes on prompts as text alone."""


def chat_mode(chat: Chat, tokenizer: Tokenizer) -> Chat:
    """The chat mode that a setting means for a model: "auto" depends on the model's chat template."""
    if chat == "auto":
        return "single_turn" if tokenizer.has_chat else "none"
    if chat != "none" and not tokenizer.has_chat:
        raise DapdError(f"chat is {chat}, but the model has no chat template; use none")
    return chat


def conversation(messages: Sequence[dict[str, str]]) -> str:
    return CONVERSATION + json.dumps(list(messages), ensure_ascii=False)


@dataclass(frozen=True)
class Prompter:
    """Makes the token ids of prompts under one chat mode."""

    tokenizer: Tokenizer
    chat: Chat

    def ids(self, context: str, prefix: str = "") -> list[int]:
        """The prompt's ids; `prefix` is the end of the context that counts as the beginning of the answer."""
        if context.startswith(CONVERSATION):
            return self._turns(json.loads(context.removeprefix(CONVERSATION)))
        if self.chat == "none" or not context:
            return self.tokenizer.encode(context) if context else []
        if prefix and context.endswith(prefix):
            turn = context.removesuffix(prefix).rstrip()
            return self._turns([{"role": "user", "content": turn}, {"role": "assistant", "content": prefix}])
        return self.tokenizer.chat([{"role": "user", "content": context}])

    def _turns(self, messages: list[dict[str, str]]) -> list[int]:
        """Ids of a conversation up to where the answer goes on; a last turn of the assistant begins the answer."""
        if messages[-1]["role"] != "assistant":
            return self.tokenizer.chat(messages)
        return self.tokenizer.chat(messages[:-1]) + self.tokenizer.encode(messages[-1]["content"], special=False)

    def pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Ids of a context and of its continuation, cut where the tokenizer itself would cut."""
        if self.chat != "none" or context.startswith(CONVERSATION):
            return self.ids(context), self.tokenizer.encode(continuation, special=False)
        # A space at the border belongs to the word after it.
        spaces = len(context) - len(context.rstrip())
        if spaces:
            context, continuation = context[:-spaces], context[-spaces:] + continuation
        before = self.ids(context)
        whole = self.tokenizer.encode(context + continuation)
        return before, whole[len(before) :]


def cut(text: str, until: Sequence[str]) -> str:
    """The text before the first of the stop strings."""
    ends = [text.find(stop) for stop in until if stop and stop in text]
    return text[: min(ends)] if ends else text


FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


def fenced(text: str) -> str | None:
    """The first fenced block of a text, to be put after a prompt that is code; None where there is none.

    A block that holds the whole function again replaces the one that the prompt begins.
    """
    block = FENCE.search(text)
    return None if block is None else "\n" + block.group(1)
