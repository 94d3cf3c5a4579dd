"""The JSON of answers: whole, or in chunks that an unmodified OpenAI client can read."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, Literal

from dapd.errors import DapdError
from dapd.generation import DiffusionLM
from dapd.server.jobs import Finished, Job, Passed, Scored
from dapd.server.planning import Plan
from dapd.viewer import head_of, live

Kind = Literal["chat", "completion", "infill"]
NAMES: dict[Kind, tuple[str, str, str]] = {
    "chat": ("chatcmpl", "chat.completion", "chat.completion.chunk"),
    "completion": ("cmpl", "text_completion", "text_completion"),
    "infill": ("infill", "infill", "infill.chunk"),
}
"""The beginning of an answer's id, the `object` of a whole answer, and the `object` of a chunk."""


@lru_cache(1)
def _bytes_of(lm: DiffusionLM) -> dict[int, bytes]:
    """The bytes of each token, where they are known. A token may be only a part of a character, which has no text: from
    the bytes of several tokens, clients put such characters together."""
    try:
        return lm.tokenizer.token_bytes()
    except DapdError:  # its tokens are not joined as bytes
        return {}


class Answers:
    """Writes the answer to one request."""

    def __init__(self, kind: Kind, lm: DiffusionLM, plan: Plan, n_top: int) -> None:
        self.kind = kind
        self.lm = lm
        self.plan = plan
        self.n_top = n_top
        """How many alternatives a client asked for in addition to each token's own log-probability; -1: no logprobs."""
        prefix, self.object, self.chunk_object = NAMES[kind]
        self.id = f"{prefix}-{uuid.uuid4().hex}"
        self.created = int(time.time())

    def whole(self, done: Sequence[Finished]) -> dict[str, Any]:
        choices = [self._choice(one) for one in sorted(done, key=lambda one: one.index)]
        return {**self._frame(self.object), "choices": choices, "usage": self.usage(done)}

    def first(self, index: int) -> dict[str, Any]:
        """The chunk that opens a text."""
        if self.kind == "chat":
            return self._chunk(index, {"role": "assistant", "content": ""})
        return self._chunk(index, self.plan.echoes[index])

    def passed(self, event: Passed) -> dict[str, Any]:
        """The chunk of a pass: the text added to the finished beginning, and in denoise mode the committed tokens."""
        content: Any = event.text if self.kind != "chat" else {"content": event.text} if event.text else {}
        chunk = self._chunk(event.index, content)
        if event.record is not None:
            # No decoder of this package takes a token back; the field is there for decoders that do.
            chunk["denoise"] = {**live(event.record, event.masked, event.edges), "revoked": []}
        return chunk

    def opened(self, job: Job) -> dict[str, Any]:
        """In denoise mode: the canvas before the first pass."""
        chunk = self._chunk(job.index, {} if self.kind == "chat" else "")
        assert job.recorder is not None
        chunk["denoise_head"] = head_of(job.recorder.trace, job.work.label)
        return chunk

    def last(self, event: Finished) -> dict[str, Any]:
        """The chunk that closes a text."""
        chunk = self._chunk(event.index, {} if self.kind == "chat" else "", event.finish_reason)
        chunk["choices"][0]["logprobs"] = self._logprobs(event)
        return chunk

    def total(self, done: Sequence[Finished]) -> dict[str, Any]:
        """The chunk with the counts."""
        return {**self._frame(self.chunk_object), "choices": [], "usage": self.usage(done)}

    def usage(self, done: Iterable[Finished]) -> dict[str, Any]:
        done = list(done)
        tokens = sum(one.n_tokens for one in done)
        passes = sum(one.passes for one in done)
        return {
            "prompt_tokens": self.plan.prompt_tokens,
            "completion_tokens": tokens,
            "total_tokens": self.plan.prompt_tokens + tokens,
            "passes": passes,
            "tokens_per_pass": round(tokens / max(1, passes), 4),
        }

    def _frame(self, name: str) -> dict[str, Any]:
        return {"id": self.id, "object": name, "created": self.created, "model": self.lm.name}

    def _choice(self, one: Finished) -> dict[str, Any]:
        content: dict[str, Any]
        if self.kind == "chat":
            content = {"message": {"role": "assistant", "content": one.text, "refusal": None}}
        else:
            content = {"text": self.plan.echoes[one.index] + one.text}
        return {
            "index": one.index,
            **content,
            "logprobs": self._logprobs(one),
            "finish_reason": one.finish_reason,
        }

    def _chunk(self, index: int, content: Any, finish_reason: str | None = None) -> dict[str, Any]:
        named = {"delta": content} if self.kind == "chat" else {"text": content}
        choice = {"index": index, **named, "logprobs": None, "finish_reason": finish_reason}
        return {**self._frame(self.chunk_object), "choices": [choice]}

    def _logprobs(self, one: Finished) -> dict[str, Any] | None:
        if self.n_top < 0:
            return None
        if self.kind == "chat":
            content = [
                {**self._token(s.token, s.log_p), "top_logprobs": [self._token(*pair) for pair in self._top(s)]}
                for s in one.scored
            ]
            return {"content": content, "refusal": None}
        texts = [self._text(s.token) for s in one.scored]
        return {
            "tokens": texts,
            "token_logprobs": [s.log_p for s in one.scored],
            "top_logprobs": [{self._text(token): p for token, p in self._top(s)} for s in one.scored],
            "text_offset": list(accumulate(map(len, texts[:-1]), initial=0)) if texts else [],
        }

    def _top(self, scored: Scored) -> tuple[tuple[int, float], ...]:
        return scored.top[: self.n_top]

    def _token(self, token: int, log_p: float) -> dict[str, Any]:
        text = self._text(token)
        own = _bytes_of(self.lm).get(token)
        return {"token": text, "logprob": log_p, "bytes": list(text.encode() if own is None else own)}

    def _text(self, token: int) -> str:
        return self.lm.tokenizer.decode([token], skip_special=False)
