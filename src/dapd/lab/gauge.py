"""The gauge: whether the model is as uncertain of its text, at the start of decoding, as models of real text are.

Decoders cannot be told apart on a model that knows most of its answer in the first pass. The gauge measures how
confident the model is on a fully masked canvas, and how many tokens a plain confidence decoder commits in a pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dapd.canvas import Canvas
from dapd.decoding import Options, decode
from dapd.lab.evaluate import Exam, blank
from dapd.lab.tasks import Task
from dapd.lab.tokenizer import LabTokenizer
from dapd.models.base import MaskedLM
from dapd.strategies import Threshold

SURE = 0.9
"""Confidence from which a prediction counts as sure; also the threshold of the decoder whose pace is measured."""

BLOCK = 32
"""Block length of the decoder whose pace is measured."""

MOST_SURE = 0.15
"""Largest allowed share of sure predictions on a fully masked canvas, predictions of the end aside."""

PACE = (2.0, 6.0)
"""Smallest and largest allowed number of tokens that the threshold decoder commits in a pass."""


@dataclass(frozen=True)
class Gauge:
    """How confident a model is at the start of decoding, and how fast a threshold decoder is with it."""

    task: str
    prompts: int
    sure: float
    """Share of positions with a confidence of at least `SURE`, among those that are not predicted to be the end."""
    confidence: float
    """Median confidence of the positions that are not predicted to be the end."""
    entropy: float
    """Median entropy of the positions that are not predicted to be the end, in nats."""
    past_end: float
    """Share of all positions that are predicted to be EOS or the end of the turn."""
    passes: float
    """Mean forward passes per prompt of the threshold decoder."""
    pace: float
    """Tokens that the threshold decoder commits in a pass, EOS included."""
    text_pace: float
    """Tokens of the text alone that the threshold decoder commits in a pass."""

    def complaints(self) -> list[str]:
        """A sentence for each measure that lies outside of its allowed range; empty where none does."""
        complaints = []
        if self.sure > MOST_SURE:
            complaints.append(f"{self.sure:.1%} of the text is sure in the first pass; at most {MOST_SURE:.0%} may be")
        if not PACE[0] <= self.pace <= PACE[1]:
            complaints.append(
                f"the threshold decoder commits {self.pace:.1f} tokens a pass; {PACE[0]:g} to {PACE[1]:g} are due"
            )
        return complaints


def gauge(model: MaskedLM, tokenizer: LabTokenizer, task: Task, exam: Exam) -> Gauge:
    """Measure a model on test prompts of a task."""
    asked = [tokenizer.chat(example.prompt) for example in task.examples(exam.n, exam.seed)]
    batches = [asked[first : first + exam.batch] for first in range(0, exam.n, exam.batch)]
    ends = [i for i in (model.profile.eos_id, model.profile.eot_id) if i is not None]
    seen = [_first_pass(model, prompts, task.room, ends) for prompts in batches]
    sure = torch.cat([one.confidence for one in seen])
    entropy = torch.cat([one.entropy for one in seen])
    paced = [row for prompts in batches for row in _decode_and_count(model, tokenizer, prompts, task.room)]
    passes = sum(row.passes for row in paced)
    return Gauge(
        task=task.name,
        prompts=exam.n,
        sure=float((sure >= SURE).float().mean()),
        confidence=float(sure.median()),
        entropy=float(entropy.median()),
        past_end=1 - len(sure) / (exam.n * task.room),
        passes=passes / exam.n,
        pace=exam.n * task.room / passes,
        text_pace=sum(row.tokens for row in paced) / passes,
    )


@dataclass(frozen=True)
class _Predictions:
    """The predictions at those positions of a batch that are not predicted to be the end."""

    confidence: Float[Tensor, " n"]
    entropy: Float[Tensor, " n"]


@torch.no_grad()
def _first_pass(model: MaskedLM, prompts: Sequence[Sequence[int]], n_new: int, ends: Sequence[int]) -> _Predictions:
    """The predictions of one forward pass over each fully masked canvas."""
    logits = torch.cat([_first_logits(model, blank(model, prompt, n_new)) for prompt in prompts])
    logits[..., model.profile.mask_id] = -torch.inf
    log_p = logits.log_softmax(-1)
    best = log_p.max(-1)
    inside = torch.ones_like(best.indices, dtype=torch.bool)
    for end in ends:
        inside &= best.indices != end
    entropy = -(log_p.exp() * log_p.clamp_min(-100.0)).sum(-1)
    return _Predictions(best.values.exp()[inside].cpu(), entropy[inside].cpu())


def _first_logits(model: MaskedLM, canvas: Canvas) -> Float[Tensor, "1 n vocab"]:
    """Logits of the new columns of one canvas."""
    tokens = canvas.tokens.to(model.device)[None]
    return model(tokens, slice(0, canvas.length), slice(canvas.start, canvas.length)).logits.float()


@dataclass(frozen=True)
class _Counts:
    """The counts of one prompt that the threshold decoder decoded."""

    passes: int
    tokens: int


def _decode_and_count(
    model: MaskedLM, tokenizer: LabTokenizer, prompts: Sequence[Sequence[int]], n_new: int
) -> Iterator[_Counts]:
    """Decode each prompt in blocks under Fast-dLLM's threshold rule; count its passes and the tokens of its text."""
    canvases = [blank(model, prompt, n_new) for prompt in prompts]
    passes = [0] * len(prompts)
    for step in decode(model, canvases, Threshold(SURE), Options(block_length=BLOCK, confidence_dtype="float32")):
        row = int(str(step.row))
        passes[row] += 1
        canvases[row] = step.canvas
    for count, canvas in zip(passes, canvases, strict=True):
        yield _Counts(count, len(tokenizer.tokens(canvas.tokens[canvas.start :].tolist())))
