"""A model to talk to: prompts in, completions out."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, Protocol, overload

import torch
from torch import Tensor

from dapd.canvas import Canvas
from dapd.engine import Options, Step, decode
from dapd.errors import DapdError, unknown
from dapd.models import MaskedLM, Transformer, is_masked_lm, load_network, resolve
from dapd.models import random as random_network
from dapd.models.fp8 import check_fp8, to_fp8
from dapd.models.masked_lm import load_masked_lm
from dapd.models.tokenizer import ByteTokenizer, HubTokenizer, Messages, Tokenizer, load_tokenizer
from dapd.sampling import Sampling
from dapd.settings import Setting, describe, parsed, setting
from dapd.strategies import Selects
from dapd.trace import Recorder, Trace

Ids = Sequence[int]
Prompt = str | Messages | Ids | Tensor
"""Plain text, a conversation (messages with role and content), or token ids."""

DEFAULT_MODEL = "lab"
ANY_TEXT = "lab:any-text"

MASK_MARK = re.compile(r"\[MASK(?:\*(\d+))?\]")


class Streamer(Protocol):
    """What `transformers` calls a text diffusion streamer."""

    def put(self, value: Tensor) -> None: ...
    def put_draft(self, value: Tensor) -> None: ...
    def end(self) -> None: ...


@dataclass(frozen=True)
class Completion:
    """What came of one prompt."""

    text: str
    """The generated text up to the end of the turn; for infilling the whole text."""
    ids: list[int]
    """The generated tokens, the EOS tail included; for infilling those that were filled in."""
    prompt_ids: list[int]
    finish_reason: Literal["stop", "length"]
    """stop: the text ended by itself (EOS or end of turn); length: all new tokens were used."""
    trace: Trace

    @property
    def nfe(self) -> int:
        """Forward passes."""
        return self.trace.nfe

    @property
    def generated_tokens(self) -> int:
        """Generated tokens before the first EOS."""
        return self.trace.n_generated

    @property
    def tokens_per_forward(self) -> float:
        return self.trace.tokens_per_forward

    @property
    def seconds(self) -> float:
        return self.trace.seconds


def load(
    source: str | Path,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    revision: str | None = None,
    mask_id: int | None = None,
    fp8: bool = False,
) -> DiffusionLM:
    """A model from a checkpoint folder, a hub id, `lab`, or `random:SHAPE`. Device None: a GPU if there is one.

    `fp8` quantises the linear layers of LLaDA and Dream models, which is faster on large GPUs and an approximation.
    `lab:any-text` is the lab model reading any text, without the words that it does not know: what it says means
    nothing then, but every command can be tried with it.
    """
    device = check_device(device)
    name = str(source)
    if fp8:
        check_fp8(torch.device(device), dtype)
        dtype = torch.bfloat16
    if name.startswith("random:"):
        chosen = dtype or (torch.float32 if torch.device(device).type == "cpu" else torch.bfloat16)
        network = random_network(name.removeprefix("random:"), device=device, dtype=chosen, sharpness=8.0)
        return DiffusionLM(_quantised(network, fp8), ByteTokenizer(network.profile), name=_shown(name, fp8))
    folder = resolve("lab" if name == ANY_TEXT else source, revision)
    if is_masked_lm(folder):
        if fp8:
            raise DapdError(f"fp8 is for LLaDA and Dream models; {name} is a masked language model of transformers")
        masked_lm, inner = load_masked_lm(folder, device=device, dtype=dtype, mask_id=mask_id)
        return DiffusionLM(masked_lm, HubTokenizer(inner, masked_lm.profile), name=name)
    network = _quantised(load_network(folder, device=device, dtype=dtype, mask_id=mask_id), fp8)
    tokens = partial(load_tokenizer, folder, network.profile, lenient=name == ANY_TEXT)
    return DiffusionLM(network, tokens, name=_shown(name, fp8))


def _quantised(network: Transformer, fp8: bool) -> Transformer:
    return to_fp8(network) if fp8 else network


def _shown(name: str, fp8: bool) -> str:
    """What traces and tables call the model: an approximation is named as one."""
    return f"{name} (fp8)" if fp8 else name


def check_device(device: str | torch.device | None) -> torch.device:
    """The device, if there is one of that name; None: a GPU if there is one."""
    try:
        found = torch.device(default_device() if device is None else device)
    except RuntimeError:
        raise DapdError(f"unknown device {str(device)!r}; allowed: cpu, cuda, cuda:1, ...") from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise DapdError(f"device is {device}, but this torch sees no CUDA GPU; give cpu, or install torch for CUDA")
    return found


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def as_dtype(name: str | None) -> torch.dtype | None:
    """A dtype by name; None: the default of the device."""
    allowed = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name is not None and name not in allowed:
        raise unknown("dtype", name, allowed)
    return None if name is None else allowed[name]


class DiffusionLM:
    """A masked diffusion language model with its tokenizer."""

    def __init__(
        self, network: MaskedLM, tokenizer: Tokenizer | Callable[[], Tokenizer | None] | None = None, *, name: str = ""
    ) -> None:
        self.network = network
        self.name = name or type(network).__name__
        self._tokenizer = tokenizer

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, read when it is first needed: token ids work without one."""
        if self._found is None:
            raise DapdError(f"the model {self.name} comes without a tokenizer; give prompts as token ids")
        return self._found

    @property
    def has_tokenizer(self) -> bool:
        return self._found is not None

    @cached_property
    def _found(self) -> Tokenizer | None:
        return self._tokenizer() if callable(self._tokenizer) else self._tokenizer

    @overload
    def generate(self, prompts: str, **kwargs: Any) -> Completion: ...
    @overload
    def generate(self, prompts: Prompt | Sequence[Prompt], **kwargs: Any) -> Completion | list[Completion]: ...
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        strategy: str | Selects | Setting = "dapd-staged",
        max_new_tokens: int = 256,
        options: Options | None = None,
        fixed: Mapping[int, int] | None = None,
        on_step: Callable[[Step], None] | None = None,
        streamer: Streamer | None = None,
        **settings: Any,
    ) -> Completion | list[Completion]:
        """Complete one prompt (a Completion) or several (a list of them).

        A string is continued as it stands; a list of messages goes through the model's chat template. `strategy` is a
        name (`dapd strategies` lists them) or any object with `select`. `fixed` pins new tokens: {index among the new
        tokens: token id}. Fields of `Options` and `Sampling` may be given directly: block_length=32, temperature=0.5.
        """
        rows, single = self._rows(prompts)
        prompt_ids = [self.encode(row) for row in rows]
        profile = self.network.profile
        canvas = Canvas.blank(
            prompt_ids, max_new_tokens, mask_id=profile.mask_id, pad_id=profile.pad_id, device=self.network.device
        )
        if fixed:
            self._check_ids(list(fixed.values()))
            for row, ids in enumerate(prompt_ids):
                canvas = canvas.fix(row, {len(ids) + index: token for index, token in fixed.items()})
        chosen = as_setting(strategy)
        options = with_settings(options or Options(), settings)
        if options.block_length is None and chosen.n_blocks > 1:
            options = dataclasses.replace(options, block_length=blocks_of(max_new_tokens, chosen.n_blocks))
        feed = None if streamer is None else _Feed(streamer, canvas, options)
        traces = self._decode(canvas, chosen, options, on_step, None if feed is None else feed.add)
        if feed is not None:
            feed.end(traces[0].tokens())
        completions = [self._completion(trace, ids) for trace, ids in zip(traces, prompt_ids, strict=True)]
        return completions[0] if single else completions

    def infill(
        self,
        template: str | Ids,
        *,
        prompt: Prompt | None = None,
        strategy: str | Selects | Setting = "dapd-staged",
        options: Options | None = None,
        on_step: Callable[[Step], None] | None = None,
        **settings: Any,
    ) -> Completion:
        """Fill the masks of a text ("The capital of [MASK] is [MASK*3].") or of ids, alone or behind a prompt."""
        canvas = self.template(template, prompt)
        chosen, options = as_setting(strategy), with_settings(options or Options(), settings)
        [trace] = self._decode(canvas, chosen, options, on_step)
        asked = 0 if prompt is None else len(self.encode(prompt))
        text = self.tokenizer.decode(trace.tokens()[asked:]) if self.has_tokenizer else ""
        return Completion(text, trace.generated, trace.canvas, "length", trace)

    def _decode(
        self, canvas: Canvas, chosen: Setting, options: Options, *watchers: Callable[[Step], None] | None
    ) -> list[Trace]:
        """Decode to the end, recording every step and showing it to whoever watches."""
        recorder = self.recorder(canvas, chosen.strategy, options)
        for step in decode(self.network, canvas, chosen.strategy, options):
            recorder.add(step)
            for watch in watchers:
                if watch is not None:
                    watch(step)
        return recorder.traces

    def stream(
        self, canvas: Canvas, strategy: str | Selects | Setting = "dapd-staged", options: Options | None = None
    ) -> Iterator[Step]:
        """The steps of a decoding, for callers that want to look on or stop half-way."""
        return decode(self.network, canvas, as_setting(strategy).strategy, options)

    def template(self, template: str | Ids, prompt: Prompt | None = None) -> Canvas:
        """A canvas from a text with [MASK] marks ([MASK*5] is five), or from ids, behind a prompt if there is one."""
        profile = self.network.profile
        if isinstance(template, str):
            counts = [int(mark.group(1) or 1) for mark in MASK_MARK.finditer(template)]
            if not counts:
                raise DapdError("the template has no [MASK]: there is nothing to fill")
            ids = self.tokenizer.encode_masked(MASK_MARK.split(template)[::2], counts, special=prompt is None)
        else:
            ids = [int(i) for i in template]
        ids = [*(self.encode(prompt) if prompt is not None else ()), *ids]
        self._check_ids(ids)
        return Canvas.infill([ids], mask_id=profile.mask_id, pad_id=profile.pad_id, device=self.network.device)

    def encode(self, prompt: Prompt) -> list[int]:
        """The token ids of a prompt."""
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(prompt)
        elif isinstance(prompt, Tensor):
            ids = [int(i) for i in prompt.flatten().tolist()]
        elif len(prompt) and isinstance(prompt[0], dict):
            ids = self.tokenizer.chat(prompt)  # type: ignore[arg-type]
        else:
            ids = [int(i) for i in prompt]  # type: ignore[arg-type]
        self._check_ids(ids)
        return ids

    def recorder(self, canvas: Canvas, strategy: Selects, options: Options) -> Recorder:
        """A recorder whose traces say how they were made."""
        about = {"model": self.name, "strategy": describe(strategy), "options": dataclasses.asdict(options)}
        text = (lambda token: self.tokenizer.decode([token], skip_special=False)) if self.has_tokenizer else None
        prompts = [canvas.row(row)[: -canvas.n_new].tolist() if canvas.n_new else None for row in range(canvas.batch)]
        texts = [self.tokenizer.decode(ids, skip_special=False) if text and ids else None for ids in prompts]
        rows = [{**about, "prompt": prompt} for prompt in texts]
        return Recorder(canvas, self.network.profile.eos_id, rows, text, held=options.record_edges)

    def _completion(self, trace: Trace, prompt_ids: list[int]) -> Completion:
        profile, ids = self.network.profile, trace.tokens()[len(prompt_ids) :]
        stops = [ids.index(stop) for stop in (profile.eos_id, profile.eot_id) if stop is not None and stop in ids]
        end = min(stops, default=len(ids))
        text = self.tokenizer.decode(ids[:end]) if self.has_tokenizer else ""
        return Completion(text, ids, prompt_ids, "stop" if stops else "length", trace)

    def _rows(self, prompts: Prompt | Sequence[Prompt]) -> tuple[list[Prompt], bool]:
        """The prompts as a list, and whether there was one alone."""
        if isinstance(prompts, str):
            return [prompts], True
        if isinstance(prompts, Tensor):
            return (list(prompts), False) if prompts.dim() == 2 else ([prompts], True)
        if not len(prompts):
            raise DapdError("no prompts: the list is empty; give at least one")
        if isinstance(prompts[0], dict | int):
            return [prompts], True  # type: ignore[list-item]
        return list(prompts), False  # type: ignore[arg-type]

    def _check_ids(self, ids: list[int]) -> None:
        vocab = getattr(getattr(self.network, "config", None), "vocab_size", None)
        wrong = [i for i in ids if i < 0 or (vocab is not None and i >= vocab)]
        if wrong:
            raise DapdError(f"token id {wrong[0]} is outside of the model's vocabulary (0..{(vocab or 0) - 1})")


class _Feed:
    """Shows a streamer the blocks as they are finished and the rest as a draft."""

    def __init__(self, streamer: Streamer, canvas: Canvas, options: Options) -> None:
        if canvas.batch != 1:
            raise DapdError(f"a streamer shows one prompt at a time; {canvas.batch} were given")
        self.streamer = streamer
        self.pending = canvas.blocks(options.block_length)
        self.shown = canvas.start
        streamer.put(canvas.tokens[0, : self.shown].cpu())

    def add(self, step: Step) -> None:
        tokens, masked = step.canvas.tokens[0].cpu(), step.canvas.masked[0].cpu()
        while self.pending and not masked[self.pending[0]].any():
            stop = self.pending.pop(0).stop
            self.streamer.put(tokens[self.shown : stop])
            self.shown = stop
        if self.pending:
            self.streamer.put_draft(tokens[self.shown :])

    def end(self, row: list[int]) -> None:
        """Show what is left, which is all of it where everything was fixed beforehand."""
        if self.shown < len(row):
            self.streamer.put(torch.tensor(row[self.shown :]))
        self.streamer.end()


def as_setting(strategy: str | Selects | Setting) -> Setting:
    """A strategy from a name, from an object with `select`, or as it is."""
    if isinstance(strategy, Setting):
        return strategy
    return setting(strategy) if isinstance(strategy, str) else Setting(strategy)  # type: ignore[arg-type]


def blocks_of(n_new: int, n_blocks: int) -> int:
    if n_new % n_blocks:
        raise DapdError(f"the setting asks for {n_blocks} blocks, which do not divide the {n_new} new tokens")
    return n_new // n_blocks


DRAWN = frozenset(f.name for f in dataclasses.fields(Sampling))
LOOP_FIELDS = DRAWN | {f.name for f in dataclasses.fields(Options)} - {"sampling"}
"""What may be set of the loop, by name: the fields of its options and of their sampling."""


def with_settings(options: Options, settings: Mapping[str, Any]) -> Options:
    """Options with some fields, of their own or of their sampling, changed."""
    for name in settings:
        if name not in LOOP_FIELDS:
            raise unknown("setting", name, LOOP_FIELDS)
    sampling = parsed(Sampling, {k: v for k, v in settings.items() if k in DRAWN})
    rest = parsed(Options, {k: v for k, v in settings.items() if k not in DRAWN})
    return dataclasses.replace(options, sampling=dataclasses.replace(options.sampling, **sampling), **rest)
