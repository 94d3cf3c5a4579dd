"""A model with its tokenizer, as a user calls it: it turns prompts into completions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar, Unpack

import torch

from dapd.canvas import Canvas
from dapd.decoding import Constraint, Options, Recordings, Step, decode
from dapd.errors import DapdError
from dapd.generation.completion import Completion
from dapd.generation.prompts import Ids, Prompt, TextModel
from dapd.generation.streamer import Feed, Streamer
from dapd.models import MaskedLM, TransformerConfig
from dapd.models.source import LoadedModel, open_model, random_model
from dapd.models.tokenizer import Tokenizer
from dapd.settings import DEFAULT_STRATEGY, LoopFields, Setting, as_setting, describe, with_fields
from dapd.strategies import Selects
from dapd.trace import Recorder

T = TypeVar("T")
R = TypeVar("R")

AnyStrategy = str | Selects | Setting
"""The name of a strategy, an object with `select`, or a setting of the paper."""

DEFAULT_MODEL = "lab"
DEFAULT_NEW_TOKENS = 256


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
    `fp8` quantises the linear layers of LLaDA and Dream models, which is faster on large GPUs but approximate.
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


class DiffusionLM(TextModel):
    """A masked diffusion language model with its tokenizer."""

    def __init__(
        self, network: MaskedLM, tokenizer: Tokenizer | Callable[[], Tokenizer | None] | None = None, *, name: str = ""
    ) -> None:
        super().__init__(network, tokenizer, name=name)
        self._recordings: Recordings | None = None

    @classmethod
    def of(cls, model: LoadedModel) -> DiffusionLM:
        return cls(model.network, model.tokenizer, name=model.name)

    def __repr__(self) -> str:
        return f"DiffusionLM({self.name!r}, {type(self.network).__name__}, device={str(self.network.device)!r})"

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
        options = as_setting(strategy).with_blocks(with_fields(Options() if options is None else options, fields))
        feed = None if streamer is None else Feed(streamer, canvas, options)
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
        options = with_fields(Options() if options is None else options, fields)
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
        if isinstance(templates, str):
            raise DapdError("the templates are one text; give a list of texts, or call infill()")
        canvases = [self.template(template, prompt) for template in templates]
        options = with_fields(Options() if options is None else options, fields)
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
        options = chosen.with_blocks(with_fields(Options() if options is None else options, fields))
        canvas = self.canvas(prompt, max_new_tokens)
        return decode(self.network, [canvas], chosen.strategy, options, recordings=self.recordings)

    def recorder(self, canvas: Canvas, strategy: Selects, options: Options) -> Recorder:
        """A recorder for a row. Its trace names the model, the strategy, the options, the prompt and the device."""
        text = self.token_text if self.has_tokenizer else None
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
        profile = self.network.profile
        return Recorder(canvas, profile.eos_id, about, text, eot_id=profile.eot_id, held=options.record_edges)

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
        """Decode canvases made by `canvas` or `template`: yields the number of each with its completion once done.

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
