"""One pass of the paper's loop, as the device computes it: forward, observe, select.

This is the algorithm. What was selected is committed by the rows themselves, which live on the host (`Row.accept` in
`row.py`); `decoder.py` goes on from pass to pass while rows come and go; `plan.py` decides which rows share a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dapd.decoding.exchange import Inputs, Luggage, Outcome
from dapd.decoding.plan import Pass
from dapd.decoding.row import Row, Top
from dapd.decoding.sampling import choose
from dapd.errors import StrategyContractError
from dapd.models.base import Capture, MaskedLM, Prediction
from dapd.models.cache import KVCache, KVPool
from dapd.models.columns import take
from dapd.strategies.base import Observation, Progress, Selection, Selects


def run_pass(
    model: MaskedLM, one: Pass, pool: KVPool | None, inputs: Inputs, luggage: Sequence[Luggage]
) -> tuple[list[Outcome], list[object]]:
    """What comes of a pass and what is remembered of it, for the rows of each strategy.

    Nothing here reads a tensor on the host, and everything that differs between two passes of a kind comes in through
    `inputs` and `luggage`: that is what lets a pass be recorded.
    """
    prediction = forward(model, one, pool, inputs)
    outcomes: list[Outcome] = []
    memories: list[object] = []
    for number, group in enumerate(one.groups):
        row = group.members[0]
        seen = observe(model, one, inputs, prediction, number, luggage[number])
        # Copies: a strategy that writes into what it is shown does not change what is committed.
        token = seen.token.clone()
        confidence = seen.confidence.clone()
        selection = select(row.strategy, seen, luggage[number].memory)
        edges = selection.edges if row.options.record_edges else None
        outcomes.append(Outcome(selection.commit, token, confidence, edges, likeliest(seen, row.options.record_top)))
        memories.append(selection.memory)
    return outcomes, memories


def forward(model: MaskedLM, one: Pass, pool: KVPool | None, inputs: Inputs) -> Prediction:
    """Logits of the window's columns and, where a strategy reads it, the attention among them."""
    column = torch.arange(one.length, device=inputs.tokens.device)
    need = one.attention
    return model(
        inputs.tokens,
        one.span if inputs.span is None else inputs.span,
        one.window if inputs.window is None else inputs.window,
        valid=column >= inputs.padding[:, None] if one.padded else None,
        cache=None if pool is None else KVCache(pool, inputs.places),
        capture=None if need is None else Capture(need.resolve(model.n_layers), need.rows, need.keys),
    )


def observe(
    model: MaskedLM, one: Pass, inputs: Inputs, prediction: Prediction, number: int, luggage: Luggage
) -> Observation:
    """What the strategy of group `number` sees: tokens, confidences, progress, attention."""
    group = one.groups[number]
    given = inputs.groups[number]
    needs, options = group.members[0].needs, group.members[0].options
    view = (group.rows, slice(0, group.width))
    logits = prediction.logits[view]
    precision = options.confidence_dtype or needs.precision
    dtype = logits.dtype if precision == "model" else getattr(torch, precision)
    pick = None if group.members[0].constraint is None else partial(constrained, group.members)
    choice = choose(logits, options.sampling, model.profile, dtype, luggage.uniform, pick)
    attention = None
    need = needs.attention
    if need is not None and prediction.attention is not None:
        keys = slice(0, group.width) if need.keys == "window" else slice(None)
        attention = prediction.attention[(*view, keys)]
    return Observation(
        masked=given.choices,
        token=choice.token,
        confidence=choice.confidence,
        current=take(inputs.tokens, one.window if inputs.window is None else inputs.window)[view],
        progress=Progress(*given.counts),
        position=given.window[:, :1] + torch.arange(group.width, device=given.window.device),
        window=given.window,
        block=given.block,
        make_logits=choice.make_logits,
        attention=attention,
        noise=luggage.noise,
    )


def constrained(rows: Sequence[Row], scores: Float[Tensor, "g n vocab"]) -> Int[Tensor, "g n"]:
    """The tokens that each row's constraint proposes. This reads the rows on the host: such passes are not recorded."""
    proposals = []
    for row, row_scores in zip(rows, scores, strict=True):
        assert row.constraint is not None
        proposals.append(row.constraint.tokens(row_scores, row.canvas, row.window))
    return torch.stack(proposals)


def likeliest(seen: Observation, count: int) -> Top | None:
    """The likeliest tokens of each position; None where none are asked for."""
    if not count:
        return None
    best = seen.logits.log_softmax(-1).topk(min(count, seen.logits.shape[-1]), -1)
    return Top(best.indices, best.values)


def select(strategy: Selects, seen: Observation, memory: object) -> Selection:
    """What the strategy answers, if it has the form of an answer."""
    name = type(strategy).__name__
    shape = seen.masked.shape
    selection = strategy.select(seen, memory)
    if not hasattr(selection, "commit"):
        raise StrategyContractError(f"strategy {name} answered {type(selection).__name__}, not a Selection")
    commit = selection.commit
    if commit.shape != shape or commit.dtype != torch.bool:
        raise StrategyContractError(
            f"strategy {name} selected a {commit.dtype} tensor of shape {list(commit.shape)}; "
            f"it must be bool and of shape {list(shape)}"
        )
    return selection
