"""A model to talk to: prompts in, completions out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, Literal, Protocol, TypedDict, TypeVar, Unpack

import torch
from torch import Tensor

from dapd.canvas import Canvas
from dapd.decoding import Constraint, Options, Recordings, Reuse, Step, decode
from dapd.decoding.sampling import EosPolicy
from dapd.errors import DapdError
from dapd.models import MaskedLM, TransformerConfig
from dapd.models.chat import Messages, check_text
from dapd.models.source import LoadedModel, open_model, random_model
from dapd.models.tokenizer import Tokenizer
from dapd.settings import DEFAULT_STRATEGY, Setting, as_setting, describe, with_fields
from dapd.strategies import Selects
from dapd.strategies.base import Precision
from dapd.trace import Recorder, Trace

T = TypeVar("T")
R = TypeVar("R")

Ids = Sequence[int]
Prompt = str | Messages | Ids | Tensor
"""Plain text, a conversation (messages with role and content), or token ids."""
AnyStrategy = str | Selects | Setting
"""The name of a strategy, an object with `select`, or a setting of the paper."""

DEFAULT_MODEL = "lab"
DEFAULT_NEW_TOKENS = 256

FORMS = 32
"""Number of built forms (regular expressions, JSON Schemas) that a model keeps for later calls."""

MASK_MARK = re.compile(r"\[MASK(?:\*(\d+))?\]")


class LoopFields(TypedDict, total=False):
    """The fields of `Options` and `Sampling`, which may be given to `generate` and its variants directly."""

    block_length: int | None
    n_blocks: int
    reuse: Reuse | Literal["none", "prefix", "dual", "settled"]
    refresh: int | None
    refresh_until: int | None
    settle: int
    early_stop: bool
    eos_run: float | None
    confidence_dtype: Precision | None
    seed: int | tuple[int, ...]
    record_edges: bool
    record_top: int
    graphs: bool | None
    temperature: float
    top_p: float | None
    top_k: int | None
    tempered_confidence: bool
    eos: EosPolicy
    suppress: tuple[int, ...]
    bias: tuple[tuple[int, float], ...]


class Streamer(Protocol):
    """The interface that `transformers` calls a text diffusion streamer."""

    def put(self, value: Tensor) -> None: ...
    def put_draft(self, value: Tensor) -> None: ...
    def end(self) -> None: ...


@dataclass(frozen=True)
class Completion:
    """The result for one prompt."""

    text: str
    """The generated text up to the end of the turn; for infilling the whole text."""
    ids: list[int]
    """All new tokens, with the EOS tail behind the text; for infilling those that were filled in."""
    prompt_ids: list[int]
    """The tokens of the prompt; for infilling the template, masks included."""
    finish_reason: Literal["stop", "length"]
    """stop: the text ended by itself (EOS or end of turn); length: all new tokens were used."""
    trace: Trace
    """What every forward pass committed."""
    compute_seconds: float = 0.0
    """The prompt's share of the time of the forward passes, which it may have shared with others."""

    @property
    def nfe(self) -> int:
        """Forward passes."""
        return self.trace.nfe

    @property
    def n_generated(self) -> int:
        """How many tokens were generated before the first EOS."""
        return self.trace.n_generated

    @property
    def tokens_per_forward(self) -> float:
        """Generated tokens before the first EOS, per forward pass."""
        return self.trace.tokens_per_forward

    @property
    def seconds(self) -> float:
        """Time from the beginning of the first pass to the end of the last."""
        return self.trace.seconds

    def cut_at(self, stops: Iterable[str]) -> Completion:
        """The completion whose text ends before the first of some strings. Tokens and trace stay as they are."""
        places = [self.text.find(stop) for stop in stops if stop and stop in self.text]
        return replace(self, text=self.text[: min(places)], finish_reason="stop") if places else self

    def __repr__(self) -> str:
        return f"Completion({_short(self.text)!r}, nfe={self.nfe}, n_generated={self.n_generated})"


def load(
    source: str | Path,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    revision: str | None = None,
    mask_id: int | None = None,
    eot_id: int | None = None,
    fp8: bool = False,
    tensor_parallel: bool = False,
) -> DiffusionLM:
    """A model from a checkpoint folder, a hub id, `lab`, or `random:SHAPE`. Device None: a GPU if there is one.

    `mask_id` and `eot_id` give the mask and the end-of-turn token where the checkpoint names none, or the wrong ones.
    `fp8` quantises the linear layers of LLaDA and Dream models, which is faster on large GPUs and an approximation.
    `tensor_parallel` divides a model that is too large for one GPU among the processes that `torchrun` started; all of
    them must then make the same calls.
    `lab:any-text` is the lab model with a tokenizer that leaves out the words it does not know: the answers then mean
    nothing, but every command can be tried on any text.
    """
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise DapdError(f"dtype is {dtype!r}; give one of torch's, such as torch.bfloat16")
    model = open_model(
        source,
        device=device,
        dtype=dtype,
        revision=revision,
        mask_id=mask_id,
        eot_id=eot_id,
        fp8=fp8,
        tensor_parallel=tensor_parallel,
    )
    return DiffusionLM.of(model)


def random(
    shape: str | TransformerConfig,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    seed: int = 0,
    sharpness: float = 8.0,
) -> DiffusionLM:
    """A model of any shape with random weights, and bytes for tokens.

    `sharpness` scales the head, so that confidences spread over 0..1 as those of a trained model do.
    """
    return DiffusionLM.of(random_model(shape, device=device, dtype=dtype, seed=seed, sharpness=sharpness))


class DiffusionLM:
    """A masked diffusion language model with its tokenizer."""

    def __init__(
        self, network: MaskedLM, tokenizer: Tokenizer | Callable[[], Tokenizer | None] | None = None, *, name: str = ""
    ) -> None:
        self.network = network
        self.name = name or type(network).__name__
        self._given_tokenizer = tokenizer
        self._recordings: Recordings | None = None
        self._texts: dict[int, str] = {}
        self._forms: dict[str, Constraint] = {}
        self._forms_lock = Lock()

    @classmethod
    def of(cls, model: LoadedModel) -> DiffusionLM:
        return cls(model.network, model.tokenizer, name=model.name)

    def __repr__(self) -> str:
        return f"DiffusionLM({self.name!r}, {type(self.network).__name__}, device={str(self.network.device)!r})"

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

    @property
    def recordings(self) -> Recordings | None:
        """Passes recorded as CUDA graphs, which all decodings with this model share; None on a CPU."""
        if self._recordings is None or self._recordings.device != self.network.device:
            self._recordings = Recordings.on(self.network.device)
        return self._recordings

    def generate(
        self,
        prompt: Prompt,
        *,
        strategy: AnyStrategy = DEFAULT_STRATEGY,
        max_new_tokens: int = DEFAULT_NEW_TOKENS,
        options: Options | None = None,
        fixed: Mapping[int, int] | None = None,
        on_step: Callable[[Step], None] | None = None,
        streamer: Streamer | None = None,
        regex: str | None = None,
        json_schema: Mapping[str, Any] | None = None,
        **fields: Unpack[LoopFields],
    ) -> Completion:
        """Complete a prompt.

        A string is continued as it stands; a list of messages goes through the model's chat template. `strategy` is a
        name (`dapd strategies` lists them) or any object with `select`. `fixed` pins new tokens: {index among the new
        tokens: token id}. Fields of `Options` and `Sampling` may be given directly (block_length=32, temperature=0.5)
        and win over those of `options`. `on_step` is called after every forward pass. With `regex` or `json_schema` the
        text is certain to be of that form, whatever the strategy.
        """
        canvas = self.canvas(prompt, max_new_tokens, fixed)
        form = self.form(regex, json_schema)
        options = as_setting(strategy).with_blocks(with_fields(options or Options(), fields))
        feed = None if streamer is None else _Feed(streamer, canvas, options)
        watchers = [] if on_step is None else [on_step]
        if feed is not None:
            watchers.append(feed.add)
        done = self.complete([canvas], strategy=strategy, options=options, watchers=watchers, constraint=form)
        [(_, completion)] = done
        if feed is not None:
            feed.end(completion.trace.tokens())
        return completion

    def generate_batch(
        self,
        prompts: Sequence[Prompt],
        *,
        strategy: AnyStrategy = DEFAULT_STRATEGY,
        max_new_tokens: int = DEFAULT_NEW_TOKENS,
        batch_size: int | None = None,
        options: Options | None = None,
        fixed: Mapping[int, int] | None = None,
        on_step: Callable[[Step], None] | None = None,
        regex: str | None = None,
        json_schema: Mapping[str, Any] | None = None,
        **fields: Unpack[LoopFields],
    ) -> list[Completion]:
        """Complete several prompts, in their order; see `generate`.

        At most `batch_size` of them (None: all) share a forward pass; the next prompt takes the place of one that is
        complete.
        """
        if isinstance(prompts, str):
            raise DapdError("the prompts are one text; give a list of texts, or call generate()")
        if not len(prompts):
            raise DapdError("no prompts: the list is empty; give at least one")
        canvases = [self.canvas(prompt, max_new_tokens, fixed) for prompt in prompts]
        options = with_fields(options or Options(), fields)
        watchers = [] if on_step is None else [on_step]
        done = self.complete(
            canvases,
            strategy=strategy,
            options=options,
            batch_size=batch_size,
            watchers=watchers,
            constraint=self.form(regex, json_schema),
        )
        return [completion for _, completion in sorted(done, key=lambda one: one[0])]

    def infill(
        self,
        template: str | Ids,
        *,
        prompt: Prompt | None = None,
        strategy: AnyStrategy = DEFAULT_STRATEGY,
        options: Options | None = None,
        on_step: Callable[[Step], None] | None = None,
        **fields: Unpack[LoopFields],
    ) -> Completion:
        """Fill the masks of a text ("The capital of [MASK] is [MASK*3].") or of ids, alone or as a prompt's answer."""
        return self.infill_batch(
            [template], prompt=prompt, strategy=strategy, options=options, on_step=on_step, **fields
        )[0]

    def infill_batch(
        self,
        templates: Sequence[str | Ids],
        *,
        prompt: Prompt | None = None,
        strategy: AnyStrategy = DEFAULT_STRATEGY,
        batch_size: int | None = None,
        options: Options | None = None,
        on_step: Callable[[Step], None] | None = None,
        **fields: Unpack[LoopFields],
    ) -> list[Completion]:
        """Fill the masks of several texts, in their order; see `infill`."""
        canvases = [self.template(template, prompt) for template in templates]
        options = with_fields(options or Options(), fields)
        watchers = [] if on_step is None else [on_step]
        done = self.complete(canvases, strategy=strategy, options=options, batch_size=batch_size, watchers=watchers)
        n_prompt = 0 if prompt is None else len(self.encode(prompt))
        return [self.filled(completion, n_prompt) for _, completion in sorted(done, key=lambda one: one[0])]

    def stream(
        self,
        prompt: Prompt,
        *,
        strategy: AnyStrategy = DEFAULT_STRATEGY,
        max_new_tokens: int = DEFAULT_NEW_TOKENS,
        options: Options | None = None,
        **fields: Unpack[LoopFields],
    ) -> Iterator[Step]:
        """The steps of `generate` one by one, for callers that want to watch or to stop half-way."""
        chosen = as_setting(strategy)
        options = chosen.with_blocks(with_fields(options or Options(), fields))
        canvas = self.canvas(prompt, max_new_tokens)
        return decode(self.network, [canvas], chosen.strategy, options, recordings=self.recordings)

    def canvas(self, prompt: Prompt, max_new_tokens: int, fixed: Mapping[int, int] | None = None) -> Canvas:
        """A prompt and masks behind it; `fixed` pins some of them: {index among the new tokens: token id}.

        Where the tokenizer closes every text (BERT and its kin), a plain text is closed behind the masks.
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
        """A canvas from a text with [MASK] marks ([MASK*5] is five), or from ids, behind a prompt if there is one."""
        if isinstance(template, str):
            check_text(template)
            # A number of more digits is too large in any case, and Python reads no text of thousands of them.
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
        raise DapdError(f"the model {self.name} has no chat template: it takes a text, no conversation")

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

        The last ones are kept, because building one takes seconds.
        """
        if regex is None and json_schema is None:
            return None
        if regex is not None and not isinstance(regex, str):
            raise DapdError(f"regex is {regex!r}; it must be a text")
        from dapd.forms import build  # which needs numpy

        key = json.dumps([regex, json_schema])  # unsorted: a text has its properties in the schema's order
        with self._forms_lock:
            if key not in self._forms:
                tokens = self.tokenizer.token_bytes()
                profile = self.network.profile
                size = self.network.vocab_size
                self._forms[key] = build(tokens, size, profile, regex=regex, json_schema=json_schema)
                for old in list(self._forms)[:-FORMS]:
                    del self._forms[old]
            return self._forms[key]

    def recorder(self, canvas: Canvas, strategy: Selects, options: Options) -> Recorder:
        """A recorder for a row. Its trace names the model, the strategy, the options, the prompt and the device."""
        text = self._text if self.has_tokenizer else None
        prompt = canvas.tokens[: canvas.start].tolist() if canvas.n_new is not None else []
        about = {
            "model": self.name,
            "strategy": describe(strategy),
            "options": json.loads(json.dumps(asdict(options))),
            "prompt": self.tokenizer.decode(prompt, skip_special=False) if text and prompt else None,
            "computed": {
                "dtype": str(getattr(self.network, "dtype", "")).removeprefix("torch."),
                "device": str(self.network.device),
                "torch": str(torch.__version__),
            },
        }
        return Recorder(canvas, self.network.profile.eos_id, about, text, held=options.record_edges)

    def complete(
        self,
        canvases: Sequence[Canvas],
        *,
        strategy: AnyStrategy = DEFAULT_STRATEGY,
        options: Options | None = None,
        batch_size: int | None = None,
        watchers: Sequence[Callable[[Step], None]] = (),
        constraint: Constraint | None = None,
    ) -> Iterator[tuple[int, Completion]]:
        """Decode canvases of `canvas` or `template`: yields the number of each with its completion once it is done.

        At most `batch_size` canvases (None: all) share a forward pass. `watchers` are called with every step, one for
        each row of each pass.
        """
        chosen = as_setting(strategy)
        options = chosen.with_blocks(options or Options())
        steps = decode(
            self.network,
            canvases,
            chosen.strategy,
            options,
            places=batch_size,
            recordings=self.recordings,
            constraint=constraint,
        )
        return self._completions(canvases, chosen.strategy, options, steps, watchers)

    def each(self, function: Callable[[DiffusionLM, T], R], items: Sequence[T]) -> Iterator[tuple[int, R]]:
        """Call a function with this model and each item: yields the item's number and the result, in any order.

        Here the calls are made one after another; a model that is spread over workers makes them in the workers.
        """
        return ((number, function(self, item)) for number, item in enumerate(items))

    def _completions(
        self,
        canvases: Sequence[Canvas],
        strategy: Selects,
        options: Options,
        steps: Iterator[Step],
        watchers: Sequence[Callable[[Step], None]],
    ) -> Iterator[tuple[int, Completion]]:
        recorders = [self.recorder(canvas, strategy, options) for canvas in canvases]
        for number, canvas in enumerate(canvases):
            if not canvas.masked.any():
                yield number, self.completion(canvas, recorders[number])
        for step in steps:
            number = int(str(step.row))
            recorders[number].add(step)
            for watch in watchers:
                watch(step)
            if step.done:
                yield number, self.completion(canvases[number], recorders[number])

    def completion(self, canvas: Canvas, recorder: Recorder) -> Completion:
        """The completion of a prompt whose trace is complete."""
        trace = recorder.trace
        profile = self.network.profile
        ids = trace.tokens()[canvas.start : canvas.stop]
        ends = [ids.index(stop) for stop in (profile.eos_id, profile.eot_id) if stop is not None and stop in ids]
        return Completion(
            text=self.tokenizer.decode(ids[: min(ends, default=len(ids))]) if self.has_tokenizer else "",
            ids=ids,
            prompt_ids=trace.canvas[: trace.start],
            finish_reason="stop" if ends else "length",
            trace=trace,
            compute_seconds=recorder.compute_seconds,
        )

    def filled(self, completion: Completion, n_prompt: int) -> Completion:
        """The completion of a template: the whole text, and the tokens that were filled in."""
        trace = completion.trace
        return replace(
            completion,
            text=self.tokenizer.decode(trace.tokens()[n_prompt:]) if self.has_tokenizer else "",
            ids=trace.generated_ids,
            prompt_ids=trace.canvas,
            finish_reason="length",
        )

    def _text(self, token: int) -> str:
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


class _Feed:
    """Shows a streamer every block when it is finished, and what follows it as a draft."""

    def __init__(self, streamer: Streamer, canvas: Canvas, options: Options) -> None:
        self.streamer = streamer
        self.pending = canvas.blocks(options.block_length, options.n_blocks)
        self.shown = canvas.start
        self.stop = canvas.stop
        streamer.put(canvas.tokens[: self.shown])

    def add(self, step: Step) -> None:
        tokens = step.canvas.tokens
        masked = step.canvas.masked
        while self.pending and not masked[self.pending[0]].any():
            stop = self.pending.pop(0).stop
            self.streamer.put(tokens[self.shown : stop])
            self.shown = stop
        if self.pending:
            self.streamer.put_draft(tokens[self.shown : self.stop])

    def end(self, row: list[int]) -> None:
        """Show the rest, which is the whole text if everything was fixed beforehand, and end the stream."""
        if self.shown < self.stop:
            self.streamer.put(torch.tensor(row[self.shown : self.stop]))
        self.streamer.end()


def _short(text: str, most: int = 60) -> str:
    """A text that fits into a line."""
    return text if len(text) <= most else text[: most - 3] + "..."
