"""Requests as they arrive. A field that is not named here is refused, and so is a value that cannot be honoured."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

Number = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=2**31)]
Id = Annotated[int, Field(ge=0, le=2**31)]
Ids = Annotated[list[Id], Field(min_length=1)]
Text = Annotated[str, StringConstraints(min_length=1)]
Stop = Annotated[list[Annotated[str, StringConstraints(min_length=1, max_length=256)]], Field(max_length=8)]
Plain = bool | Annotated[int, Field(ge=-(10**9), le=10**9)] | Annotated[Number, Field(ge=-1e9, le=1e9)] | str | None


def clash(param: str, message: str) -> PydanticCustomError:
    """Fields that do not go together; `param` is the one to change."""
    return PydanticCustomError("clash", "{words}", {"words": message, "param": param})


UNORDERED = "tokens are decided in no fixed order, so those before a token cannot be counted"
NO_TOOLS = "the model calls no tools; ask for a form with response_format or regex"


def only(*neutral: Any, why: str) -> AfterValidator:
    """A field that other servers know and this one cannot honour: only its neutral values are accepted."""

    def check(value: Any) -> Any:
        if value not in neutral:
            raise PydanticCustomError("unsupported", "this is not supported: {why}", {"why": why})
        return value

    return AfterValidator(check)


class Wire(BaseModel):
    """Unknown fields are refused, and no value is turned into another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, given: Any) -> Any:
        """Null stands for a field that was left out, as in other servers: OpenAI's client sends it for None."""
        if not isinstance(given, dict):
            return given
        optional = {name for name, field in cls.model_fields.items() if not field.is_required()}
        return {name: value for name, value in given.items() if value is not None or name not in optional}


class StrategyChoice(BaseModel):
    """A strategy by name, with some of its settings."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    __pydantic_extra__: dict[str, Plain | list[Plain]]
    name: Text


class StreamOptions(Wire):
    include_usage: bool = False
    include_obfuscation: Annotated[bool | None, only(None, False, why="chunks are not padded")] = None


class SchemaFormat(Wire):
    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(Wire):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = None

    @model_validator(mode="after")
    def _has_schema(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise PydanticCustomError("schema", "type json_schema needs the field json_schema; no other type takes it")
        return self


class Request(Wire):
    """The fields that all requests for text have in common."""

    model: Text
    stream: bool = False
    stream_options: StreamOptions | None = None
    stream_mode: Literal["text", "denoise"] = "text"
    """text: the finished beginning; denoise: every pass as well."""
    temperature: Annotated[Number, Field(ge=0, le=100)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    top_k: Count | None = None
    seed: Annotated[int, Field(ge=0, lt=2**62)] | None = None
    logit_bias: dict[str, Annotated[Number, Field(ge=-100, le=100)]] | None = None
    strategy: Text | StrategyChoice | None = None
    """A name of `dapd strategies`, or an object with `name` and settings."""
    block_length: Count | None = None
    n_blocks: Count | None = None
    reuse: Literal["none", "prefix", "dual", "settled"] | None = None
    refresh: Count | None = None
    refresh_until: Count | None = None
    settle: Count | None = None
    eos: Literal["none", "ban", "defer", "ban+defer"] | None = None
    eos_run: Annotated[Number, Field(ge=0, le=1)] | None = None
    early_stop: bool = True
    """A text is done when everything before its end is decided."""
    edges: bool = False
    """With stream_mode denoise: the dependency graph of every pass."""
    timeout: Annotated[Number, Field(gt=0, le=1e6)] | None = None
    """Seconds after which the request is given up."""
    user: str | None = None
    presence_penalty: Annotated[Number | None, only(None, 0, why=UNORDERED)] = None
    frequency_penalty: Annotated[Number | None, only(None, 0, why=UNORDERED)] = None

    @model_validator(mode="before")
    @classmethod
    def _is_text(cls, given: Any) -> Any:
        """JSON can write halves of characters, which are no text and which no tokenizer takes."""
        try:
            json.dumps(given, ensure_ascii=False, default=repr).encode()
        except UnicodeEncodeError:
            raise PydanticCustomError("surrogate", "a string holds half of a character (a lone surrogate)") from None
        except RecursionError:
            raise PydanticCustomError("deep", "it is nested too deep") from None
        return given

    @model_validator(mode="after")
    def _streams(self) -> Self:
        """Refuse options that only a stream can honour where there is no stream."""
        if self.stream_options is not None and not self.stream:
            raise clash("stream_options", "stream_options needs stream: true")
        if self.stream_mode == "denoise" and not self.stream:
            raise clash("stream_mode", "stream_mode denoise needs stream: true")
        if self.edges and self.stream_mode != "denoise":
            raise clash("edges", "edges needs stream: true and stream_mode: denoise")
        return self


class Answering(Request):
    """Requests whose answer follows a prompt."""

    max_tokens: Count | None = None
    n: Count | None = None
    stop: Annotated[str, StringConstraints(min_length=1, max_length=256)] | Stop | None = None
    response_format: ResponseFormat | None = None
    regex: Text | None = None

    @property
    def form(self) -> str | None:
        """The form that the request prescribes for the text, as it is written; None: it prescribes none."""
        if self.regex is None and (self.response_format is None or self.response_format.type == "text"):
            return None
        try:
            return self.model_dump_json(include={"regex", "response_format"})
        except ValueError:  # nested too deeply, for which it will be refused
            return ""


class ContentPart(Wire):
    type: Literal["text"]
    text: str


class Message(Wire):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[ContentPart], Field(min_length=1)]
    # Clients send earlier answers back as they got them, also from other servers: with empty fields in addition to
    # the text.
    refusal: Annotated[Any, only(None, why="give the text as content")] = None
    annotations: Annotated[Any, only(None, [], why="the model reads text alone")] = None
    audio: Annotated[Any, only(None, why="the model reads text alone")] = None
    tool_calls: Annotated[Any, only(None, [], why=NO_TOOLS)] = None
    function_call: Annotated[Any, only(None, why=NO_TOOLS)] = None

    def plain(self) -> dict[str, str]:
        """The message as a chat template takes it."""
        said = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": said}


class ChatRequest(Answering):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    store: Annotated[bool | None, only(None, False, why="nothing is stored")] = None
    metadata: dict[str, str] | None = None
    tools: Annotated[list[Any] | None, only(None, [], why=NO_TOOLS)] = None
    tool_choice: Annotated[Any, only(None, "none", why=NO_TOOLS)] = None
    parallel_tool_calls: Annotated[bool | None, only(None, True, False, why=NO_TOOLS)] = None
    functions: Annotated[list[Any] | None, only(None, [], why=NO_TOOLS)] = None
    function_call: Annotated[Any, only(None, "none", why=NO_TOOLS)] = None
    modalities: Annotated[Any, only(None, ["text"], why="the answer is text")] = None
    audio: Annotated[Any, only(None, why="the answer is text")] = None
    prediction: Annotated[Any, only(None, why="all tokens are predicted at once")] = None
    reasoning_effort: Annotated[Any, only(None, why="the model has no separate reasoning")] = None
    service_tier: Annotated[Any, only(None, "auto", "default", why="there is only one tier")] = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise clash("top_logprobs", "top_logprobs needs logprobs: true")
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise clash("max_tokens", "give max_tokens or max_completion_tokens, not both")
        return self


class CompletionRequest(Answering):
    """The body of /v1/completions."""

    prompt: str | Ids | Annotated[list[str | Ids], Field(min_length=1)]
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    best_of: Annotated[int | None, only(None, 1, why="ask for n choices and take the best of them yourself")] = None
    suffix: Annotated[str | None, only(None, why="use /v1/infill with masks between the two parts")] = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.echo and self.logprobs is not None:
            raise clash("echo", "logprobs are given for generated tokens only; leave out echo")
        return self


class InfillRequest(Request):
    """The body of /v1/infill: a text with masks, alone or as the answer to a prompt."""

    template: Text | Ids
    """`It is [MASK*3].`, or token ids with the mask's id among them."""
    prompt: str | Ids | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.prompt is not None and self.messages is not None:
            raise clash("prompt", "give prompt or messages, not both")
        return self
