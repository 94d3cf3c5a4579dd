"""From a request to the texts that the engine decodes. Every mistake of a client is found here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from dapd.decoding import Constraint, Options, Reuse
from dapd.decoding.row import Row
from dapd.decoding.sampling import Sampling
from dapd.errors import DapdError
from dapd.forms import as_json
from dapd.generation import DiffusionLM
from dapd.lab.tasks.rooms import room_for
from dapd.server.config import Limits
from dapd.server.jobs import Work
from dapd.server.mistakes import MistakeError
from dapd.server.wire import Answering, ChatRequest, CompletionRequest, InfillRequest, Request, StrategyChoice
from dapd.settings import DEFAULT_STRATEGY, Setting, changed, setting

Prompt = str | list[int] | list[dict[str, str]]


@dataclass(frozen=True)
class Plan:
    """The texts of a request."""

    works: list[Work]
    prompt_tokens: int
    echoes: list[str]
    """The prompt that the answer repeats before each text; empty without `echo`."""


class Planner:
    """Reads requests for one model."""

    def __init__(self, lm: DiffusionLM, limits: Limits) -> None:
        self.lm = lm
        self.limits = limits
        lm.tokenizer  # noqa: B018  a model without one is refused now, not at the first request

    def chat(self, body: ChatRequest) -> Plan:
        if not self.lm.tokenizer.has_chat:
            raise MistakeError("messages", "the model has no chat template; use /v1/completions")
        wanted = body.max_completion_tokens or body.max_tokens
        top = max(1, body.top_logprobs or 0) if body.logprobs else 0
        return self._answering(body, [[message.plain() for message in body.messages]], wanted, top, "messages")

    def completion(self, body: CompletionRequest) -> Plan:
        prompts: list[Any] = [body.prompt] if isinstance(body.prompt, str) else list(body.prompt)
        if prompts and isinstance(prompts[0], int):
            prompts = [prompts]
        top = 0 if body.logprobs is None else max(1, body.logprobs)
        plan = self._answering(body, prompts, body.max_tokens, top, "prompt")
        if not body.echo:
            return plan
        echoes = [self._echo(prompt) for prompt in prompts for _ in range(body.n or 1)]
        return replace(plan, echoes=echoes)

    def infill(self, body: InfillRequest) -> Plan:
        prompt: Prompt | None = body.prompt
        if body.messages is not None:
            prompt = [message.plain() for message in body.messages]
        chosen, options = self._how(body, 0 if body.logprobs is None else max(1, body.logprobs))
        with blaming("template"):
            ids = [] if prompt is None else self._encode(prompt, "prompt")
            canvas = self.lm.template(body.template, ids or None)
        self._check_length("template", len(canvas.tokens), self.limits.prompt_tokens + self.limits.new_tokens)
        self._check_length("template", int(canvas.slots.sum()), self.limits.new_tokens)
        work = self._work(body, Work(canvas, chosen.strategy, options, body.seed or 0, len(ids)), chosen)
        given = len(canvas.tokens) - int(canvas.slots.sum())
        return Plan([work], given, [""])

    def _answering(self, body: Answering, prompts: list[Any], wanted: int | None, top: int, param: str) -> Plan:
        n = body.n or 1
        if n > 1 and not body.temperature:
            raise MistakeError("n", "n above 1 needs a temperature above 0; otherwise all choices would be the same")
        if len(prompts) * n > self.limits.choices:
            raise MistakeError(
                "n" if n > 1 else param,
                f"prompts times n is {len(prompts) * n}; at most {self.limits.choices} are allowed",
            )
        chosen, options = self._how(body, top)
        constraint = self._constraint(body)
        stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
        works = []
        counted = 0
        for number, prompt in enumerate(prompts):
            ids = self._encode(prompt, param)
            counted += len(ids)
            self._check_room(param, len(ids))
            n_new = self._n_new(options, wanted, prompt, len(ids))
            with blaming("max_tokens"):
                canvas = self.lm.canvas(ids, n_new)
            for choice in range(n):
                seed = (body.seed or 0) + number * n + choice
                work = Work(canvas, chosen.strategy, options, seed, len(ids), stops, constraint)
                works.append(self._work(body, work, chosen))
        return Plan(works, counted, [""] * len(works))

    def _work(self, body: Request, work: Work, chosen: Setting) -> Work:
        """The work with its label, or the error of a row that cannot be decoded."""
        per_pass = body.stream and body.stream_mode == "denoise"
        label = body.strategy.name if isinstance(body.strategy, StrategyChoice) else body.strategy
        work = replace(work, per_pass=per_pass, label=label or DEFAULT_STRATEGY)
        # The engine makes its own row when the text gets its place; this one is made only to find mistakes now.
        try:
            Row(
                self.lm.network, work.canvas, work.strategy, work.options,
                name=0, seed=work.seed, constraint=work.constraint,
            )  # fmt: skip
        except DapdError as error:
            raise MistakeError(self._blamed(body, str(error)), str(error)) from None
        return work

    def _blamed(self, body: Request, message: str) -> str:
        """The request's field that an error of its row is about: the one that the message names, or the likeliest."""
        words = set(re.findall(r"\w+", message.replace("max_new_tokens", "max_tokens"))) - {"model"}
        named = [name for name in type(body).model_fields if name in words]
        if not named and "blocks" in words and body.n_blocks is not None:
            return "n_blocks"
        if not named and "form" in words and isinstance(body, Answering):
            return "response_format" if body.regex is None else "regex"
        return named[0] if named else "strategy"

    def _how(self, body: Request, top: int) -> tuple[Setting, Options]:
        """Strategy and options of a request."""
        chosen = self._strategy(body.strategy)
        sampling = Sampling(
            temperature=body.temperature or 0.0,
            top_p=body.top_p,
            top_k=body.top_k,
            eos=body.eos or "none",
            bias=self._bias(body),
        )
        with blaming("reuse" if body.block_length is None else "block_length"):
            options = Options(
                block_length=body.block_length,
                refresh=body.refresh,
                refresh_until=body.refresh_until,
                n_blocks=body.n_blocks,
                reuse=Reuse(body.reuse or "none"),
                settle=body.settle or 1,
                early_stop=body.early_stop,
                eos_run=body.eos_run,
                sampling=sampling,
                record_edges=body.edges,
                record_top=top,
            )
        return chosen, chosen.with_blocks(options)

    def _strategy(self, given: str | StrategyChoice | None) -> Setting:
        with blaming("strategy"):
            if isinstance(given, StrategyChoice):
                named = setting(given.name)
                values = {
                    name: tuple(value) if isinstance(value, list) else value
                    for name, value in (given.__pydantic_extra__ or {}).items()
                }
                return replace(named, strategy=changed(named.strategy, values))
            return setting(given or DEFAULT_STRATEGY)

    def _bias(self, body: Request) -> tuple[tuple[int, float], ...]:
        pairs = []
        for token, amount in (body.logit_bias or {}).items():
            # Python refuses to read a number of thousands of digits, and 01 would be a second spelling of 1.
            plain = len(token) <= 12 and token.isascii() and token.isdigit() and token == str(int(token))
            if not plain or int(token) >= self.lm.network.vocab_size:
                raise MistakeError("logit_bias", f"{token[:40]!r} is not a token id of the model")
            pairs.append((int(token), float(amount)))
        return tuple(sorted(pairs))

    def _constraint(self, body: Answering) -> Constraint | None:
        """The form that a request asks for."""
        format_ = body.response_format
        wants_json = format_ is not None and format_.type != "text"
        if body.regex is not None and wants_json:
            raise MistakeError("regex", "give regex or response_format, not both")
        if body.regex is not None:
            self._check_pattern("regex", body.regex)
            with blaming("regex"):
                return self.lm.form(regex=body.regex)
        if format_ is None or not wants_json:
            return None
        schema = {"type": "object"} if format_.json_schema is None else format_.json_schema.schema_
        with blaming("response_format"):
            self._check_pattern("response_format", as_json(schema))
            return self.lm.form(json_schema=schema)

    def _check_pattern(self, param: str, written: str) -> None:
        if len(written) > self.limits.pattern_chars:
            raise MistakeError(param, f"{param} may have at most {self.limits.pattern_chars} characters")

    def _encode(self, prompt: Prompt, param: str) -> list[int]:
        with blaming(param):
            ids = self.lm.encode(prompt)
        self._check_length(param, len(ids), self.limits.prompt_tokens)
        return ids

    def _n_new(self, options: Options, wanted: int | None, prompt: Prompt, n_prompt: int) -> int:
        """How many tokens the answer may have. Where the request does not say, it is the default of `dapd generate`,
        reduced to whole blocks that the limits and the model have room for."""
        most = self.limits.new_tokens
        name, n_new = "max_tokens", wanted
        if n_new is None:
            room = min(room_for(self.lm, prompt), most, self.lm.network.max_length - n_prompt)
            name = "n_blocks" if options.block_length is None else "block_length"
            unit = options.block_length or options.n_blocks or 1
            n_new = max(unit, room - room % unit)
        if n_new > most:
            raise MistakeError(name, f"{name} is {n_new}; at most {most} new tokens are allowed")
        return n_new

    def _echo(self, prompt: str | list[int]) -> str:
        return prompt if isinstance(prompt, str) else self.lm.tokenizer.decode(prompt)

    def check_model(self, body: Request) -> None:
        """Refuse a request for another model."""
        if body.model != self.lm.name:
            message = f"the model {body.model[:100]!r} is not here; this server has {self.lm.name!r}"
            raise MistakeError("model", message, 404, "model_not_found")

    def _check_length(self, param: str, length: int, most: int) -> None:
        if length > most:
            raise MistakeError(param, f"{param}: {length} tokens; at most {most} are allowed", code="too_long")

    def _check_room(self, param: str, length: int) -> None:
        """Refuse a prompt that leaves no room for an answer, however few tokens are asked for."""
        most = self.lm.network.max_length - 1
        if length > most:
            words = f"{param}: {length} tokens; the model takes at most {most}, to have room for an answer"
            raise MistakeError(param, words, code="context_length_exceeded")

    def seconds(self, body: Request) -> float:
        """Seconds that a request may take from now on."""
        asked = body.timeout
        most = self.limits.seconds
        if asked is not None and asked > most:
            raise MistakeError("timeout", f"timeout is {asked:g}; at most {most:g} seconds are allowed")
        return most if asked is None else asked


@contextmanager
def blaming(param: str) -> Iterator[None]:
    """Inside this context a mistake is reported as one in this parameter."""
    try:
        yield
    except MistakeError:
        raise
    except DapdError as error:
        raise MistakeError(param, str(error)) from None
