"""Turns what a user gives into what is decoded: prompts and templates become canvases, and forms become constraints."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from threading import Lock
from typing import Any

from torch import Tensor

from dapd.canvas import Canvas
from dapd.decoding import Constraint
from dapd.errors import DapdError, missing_extra
from dapd.models import MaskedLM
from dapd.models.chat import Messages, check_text
from dapd.models.tokenizer import Tokenizer

Ids = Sequence[int]
Prompt = str | Messages | Ids | Tensor
"""Plain text, a conversation (messages with role and content), or token ids."""

MASK_MARK = re.compile(r"\[MASK(?:\*(\d+))?\]")

FORMS = 32
"""Number of built forms (regular expressions, JSON Schemas) that a model keeps for later calls."""


class TextModel:
    """A network with its tokenizer and its name: all that is needed to read prompts, templates and forms."""

    def __init__(
        self, network: MaskedLM, tokenizer: Tokenizer | Callable[[], Tokenizer | None] | None = None, *, name: str = ""
    ) -> None:
        self.network = network
        self.name = name or type(network).__name__
        self._given_tokenizer = tokenizer
        self._texts: dict[int, str] = {}
        self._forms: dict[str, Future[Constraint]] = {}
        self._forms_lock = Lock()

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, read when it is first needed: token ids work without one."""
        if self._tokenizer is None:
            raise DapdError(f"the model {self.name} comes without a tokenizer; give prompts as token ids")
        return self._tokenizer

    @property
    def has_tokenizer(self) -> bool:
        return self._tokenizer is not None

    @cached_property
    def _tokenizer(self) -> Tokenizer | None:
        return self._given_tokenizer() if callable(self._given_tokenizer) else self._given_tokenizer

    def canvas(self, prompt: Prompt, max_new_tokens: int, fixed: Mapping[int, int] | None = None) -> Canvas:
        """A prompt and masks after it; `fixed` pins some of them: {index among the new tokens: token id}.

        Where the tokenizer ends every text with tokens of its own (BERT and its kin), those of a plain text stand after
        the masks.
        """
        if not isinstance(max_new_tokens, int) or isinstance(max_new_tokens, bool):
            raise DapdError(f"max_new_tokens is {max_new_tokens!r}; it must be a whole number")
        if isinstance(prompt, str):
            check_text(prompt)
        ids, closing = self.tokenizer.frame(prompt) if isinstance(prompt, str) else (self.encode(prompt), [])
        self._check_prompt([*ids, *closing])
        self._check_length(len(ids) + max_new_tokens + len(closing))
        canvas = Canvas.blank(ids, max_new_tokens, mask_id=self.network.profile.mask_id, closing=closing)
        for index, token in (fixed or {}).items():
            whole = hasattr(index, "__index__") and hasattr(token, "__index__")
            if not whole or not 0 <= index < max_new_tokens:
                raise DapdError(f"fixed is {{{index!r}: {token!r}}}; it maps 0..{max_new_tokens - 1} to token ids")
        if not fixed:
            return canvas
        self._check_ids(list(fixed.values()))
        return canvas.fix({len(ids) + index: token for index, token in fixed.items()})

    def template(self, template: str | Ids, prompt: Prompt | None = None) -> Canvas:
        """A canvas from a text with [MASK] marks ([MASK*5] is five), or from ids, after a prompt if there is one."""
        if isinstance(template, str):
            check_text(template)
            # A number of more digits is too large in any case, and Python refuses to read thousands of digits.
            counts = [int((mark.group(1) or "1")[:19]) for mark in MASK_MARK.finditer(template)]
            if not sum(counts):
                raise DapdError("the template has no [MASK]: there is nothing to fill; [MASK*5] stands for five masks")
            self._check_length(sum(counts))
            ids = self.tokenizer.encode_masked(MASK_MARK.split(template)[::2], counts, special=prompt is None)
        else:
            ids = _as_ids(template)
        ids = [*(self.encode(prompt) if prompt is not None else ()), *ids]
        self._check_ids(ids)
        return Canvas.infill(ids, mask_id=self.network.profile.mask_id)

    def question(self, asked: str | Messages, system: str | None = None) -> Prompt:
        """A text as a user's message where the model has a chat template; else the text itself, to be continued.

        Conversations and system messages need a chat template.
        """
        if self.tokenizer.has_chat:
            opening = [] if system is None else [{"role": "system", "content": system}]
            return [*opening, *([{"role": "user", "content": asked}] if isinstance(asked, str) else asked)]
        if system is None and isinstance(asked, str):
            return asked
        raise DapdError(
            f"the model {self.name} has no chat template: it takes a text, not a conversation or a system message"
        )

    def encode(self, prompt: Prompt) -> list[int]:
        """The token ids of a prompt."""
        if isinstance(prompt, str):
            check_text(prompt)
            ids = self.tokenizer.encode(prompt)
        elif not hasattr(prompt, "tolist") and _is_chat(prompt):
            ids = self.tokenizer.chat(prompt)  # type: ignore[arg-type]
        else:
            ids = _as_ids(prompt)
        self._check_prompt(ids)
        return ids

    def form(self, regex: str | None = None, json_schema: Mapping[str, Any] | None = None) -> Constraint | None:
        """A regular expression or a JSON Schema as a constraint for decoding; None if neither is given.

        The most recent ones are kept, because building one takes seconds. Threads that want the same one share its
        building, and those that want others do not wait for it.
        """
        if regex is None and json_schema is None:
            return None
        if regex is not None and not isinstance(regex, str):
            raise DapdError(f"regex is {regex!r}; it must be a text")
        try:
            from dapd.forms import as_json, build
        except ModuleNotFoundError as error:  # numpy
            raise missing_extra(str(error.name), "forms", "a prescribed form") from None

        key = as_json([regex, json_schema])  # unsorted: a text has its properties in the schema's order
        with self._forms_lock:
            known = self._forms.get(key)
            form = self._forms.setdefault(key, Future())
            for old in list(self._forms)[:-FORMS]:
                del self._forms[old]
        if known is None:
            try:
                tokens = self.tokenizer.token_bytes()
                size = self.network.vocab_size
                form.set_result(build(tokens, size, self.network.profile, regex=regex, json_schema=json_schema))
            except BaseException as error:
                with self._forms_lock:
                    if self._forms.get(key) is form:
                        del self._forms[key]  # what failed for lack of time may succeed later
                form.set_exception(error)
        return form.result()

    def token_text(self, token: int) -> str:
        """The text of one token; special tokens by their names."""
        if token not in self._texts:
            self._texts[token] = self.tokenizer.decode([token], skip_special=False)
        return self._texts[token]

    def _check_length(self, n: int) -> None:
        """Refuse more tokens than the model takes, before anything of that size is made."""
        if n > self.network.max_length:
            raise DapdError(
                f"the canvas is {n} tokens long (prompt and new tokens); the model takes {self.network.max_length}"
            )

    def _check_prompt(self, ids: list[int]) -> None:
        """Refuse ids outside of the vocabulary, and masks, which would be filled and so change the question."""
        self._check_ids(ids)
        if self.network.profile.mask_id in ids:
            raise DapdError(
                "the prompt holds the mask token; a text with masks to fill is a template: --template on the command "
                "line, infill() in Python, /v1/infill of a server"
            )

    def _check_ids(self, ids: list[int]) -> None:
        wrong = [i for i in ids if not 0 <= i < self.network.vocab_size]
        if wrong:
            raise DapdError(
                f"token id {wrong[0]} is outside of the model's vocabulary (0..{self.network.vocab_size - 1})"
            )


def _is_chat(prompt: object) -> bool:
    return isinstance(prompt, Sequence) and len(prompt) > 0 and isinstance(prompt[0], dict)


def _as_ids(prompt: object) -> list[int]:
    """Token ids from a list of whole numbers, a tensor, or an array of numpy; a single row of either is one prompt."""
    values = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    if hasattr(prompt, "tolist") and isinstance(values, list) and len(values) == 1 and isinstance(values[0], list):
        values = values[0]
    if not isinstance(values, Sequence) or isinstance(values, bytes):
        raise DapdError(f"the prompt is {prompt!r}; give text, messages, or a list of token ids")
    ids = [i.item() if hasattr(i, "item") else i for i in values]
    if any(isinstance(i, str | list | tuple) for i in ids):
        raise DapdError("these are several prompts; give them to generate_batch")
    wrong = [i for i in ids if not isinstance(i, int) or isinstance(i, bool)]
    if wrong:
        raise DapdError(f"the prompt holds {wrong[0]!r}; token ids are whole numbers")
    return ids
