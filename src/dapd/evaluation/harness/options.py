"""How an evaluation is run, and what is reported of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from dapd.decoding import Options
from dapd.errors import DapdError, unknown
from dapd.settings import LOOP, Setting, changed, named, route, split_spec, with_fields

Chat = Literal["auto", "single_turn", "multi_turn", "none"]


@dataclass(frozen=True)
class EvalOptions:
    """Everything but the model, the strategy and the tasks. The defaults are the paper's where it has any."""

    max_new_tokens: int | None = 256
    """Number of new tokens, whatever the task's file says; None: as the file says, 256 where it says nothing."""
    limit: int | None = None
    """Only the first `limit` documents of each task; None: all of them."""
    shots: int | None = None
    """Examples in the prompt; None: lm-eval's default for the task."""
    chat: Chat = "auto"
    """single_turn: the whole prompt, examples included, as one user turn (as Fast-dLLM does); multi_turn: every example
    a turn of its own; none: plain text; auto: single_turn where the model has a chat template, else none."""
    fenced_code: bool | None = None
    """HumanEval: score the fenced block of an answer that has one, uncut, as Fast-dLLM does; None: only where the
    prompt is a chat. lm-eval itself appends the answer to the prompt as it stands."""
    batch: int = 1
    """Prompts decoded together; batches are made of prompts of similar length."""
    data_dir: Path | None = None
    """Folder with the data sets as files: nothing is fetched; None: from the public hubs."""
    confirm_unsafe_code: bool = False
    """Run the code that the model writes (HumanEval, MBPP); it is refused without this."""
    code_seconds: float = 10.0
    """Seconds of wall time that one piece of generated code gets; its processor time may be two seconds more."""
    code_memory_mb: int = 1024
    """Megabytes of address space that each process of generated code gets."""
    checker_seconds: float = 60.0
    """Seconds of wall time that a scorer gets for one answer; after them the answer is scored as an empty one."""
    mc_samples: int = 128
    """Random maskings per likelihood, for tasks that compare likelihoods."""
    seed: int = 0
    """Seed of all random draws: a document draws the same numbers whatever batch or process decodes it."""
    loop: Options = field(default_factory=Options)
    """Options of the decoding loop: block length, reuse, early stop, sampling."""

    def __post_init__(self) -> None:
        if self.chat not in get_args(Chat):
            raise unknown("chat mode", self.chat, get_args(Chat))
        if self.loop.seed != 0:
            raise DapdError("the loop's seed is set; in an evaluation every document has its own: set seed instead")
        for name, least in (("max_new_tokens", 1), ("limit", 1), ("shots", 0), ("batch", 1), ("mc_samples", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise DapdError(f"{name} is {value}; it must be at least {least}")
        for name in ("code_seconds", "code_memory_mb", "checker_seconds"):
            if not getattr(self, name) > 0:
                raise DapdError(f"{name} is {getattr(self, name)}; it must be above 0")

    def setup(self) -> dict[str, Any]:
        """The options that must agree for two samples to belong to one table. The number of samples, the place of the
        data and the batch size may differ: a run over the first twenty documents may go on to all of them."""
        free = ("data_dir", "confirm_unsafe_code", "batch", "limit")
        return {key: value for key, value in dataclasses.asdict(self).items() if key not in free}


HIDDEN = ("data_dir", "loop", "confirm_unsafe_code")
"""Options of an evaluation that are not set as field=value."""


def configured(spec: str, texts: Mapping[str, str], base: EvalOptions) -> tuple[Setting, EvalOptions]:
    """A strategy by name and the options, with some fields changed. A field is changed in the strategy, the options or
    the loop, whichever has a field of that name."""
    name, inline = split_spec(spec)
    chosen = named(name)
    what = f"field of {name}, the loop or the evaluation"
    own, ours, loop = route({**inline, **texts}, [type(chosen.strategy), EvalOptions, LOOP], what, HIDDEN)
    options = dataclasses.replace(base, **ours)
    options = dataclasses.replace(options, loop=with_fields(options.loop, loop))
    return dataclasses.replace(chosen, strategy=changed(chosen.strategy, own)), options


@dataclass(frozen=True)
class TaskSummary:
    """The scores and the speed of one task."""

    task: str
    n: int
    """How many documents were scored."""
    accuracy: float
    """The task's main score (GSM8K flexible-extract, pass@1, math_verify, prompt-level strict IFEval)."""
    in_percent: bool
    """Whether the score is in percent, as a mean of scores from 0 to 1 is; a perplexity is as lm-eval scales it."""
    metric: str
    """The name of the metric of lm-eval that `accuracy` is."""
    metrics: dict[str, float]
    """All of the task's metrics, as lm-eval names and scales them."""
    nfe: float
    """Forward passes per answer, the paper's steps. A document with choices asks for an answer per choice."""
    tokens_per_forward: float
    """Generated tokens before the first EOS, or up to the end of the turn, per forward pass."""
    tps: float
    """The same tokens, per second of generation."""
    tps_fast_dllm: float
    """Tokens per second as Fast-dLLM counts since January 2026: tokens of the cut answer over the whole loop's time; on
    HumanEval all tokens that are not EOS."""
    tps_fast_dllm_2025: float
    """The same as Fast-dLLM counted before: on HumanEval, the prompt's tokens count, too."""
    seconds: float
    """Generation time of all documents together."""
