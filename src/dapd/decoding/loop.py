"""One pass of the paper's loop, as the device computes it: forward, observe, select.

This is the algorithm. What was selected is committed by the rows themselves, which live on the host (`Row.accept` in
`row.py`); `decoder.py` goes on from pass to pass while rows come and go; `plan.py` decides which rows share a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dapd.decoding.exchange import GroupInputs, Inputs, Luggage, Results
from dapd.decoding.plan import Group, Pass
from dapd.decoding.row import Constraint, Outcome, Row, Top
from dapd.decoding.sampling import choose
from dapd.errors import StrategyContractError
from dapd.models.base import Capture, MaskedLM, Prediction, Profile, check_prediction
from dapd.models.cache import KVCache, KVPool
from dapd.models.columns import take, width
from dapd.strategies.base import Observation, Progress, Selection, Selects


def run_pass(model: MaskedLM, one: Pass, pool: KVPool | None, inputs: Inputs, luggage: Sequence[Luggage]) -> Results:
    """What comes of a pass and what is remembered of it.

    Nothing here reads a tensor on the host, and everything that differs between two passes of a kind comes in through
    `inputs` and `luggage`: that is what lets a pass be recorded.
    """
    prediction = forward(model, one, pool, inputs)
    outcomes: list[Outcome] = []
    memories: list[object] = []
    for group, given, carried in zip(one.groups, inputs.groups, luggage, strict=True):
        row = group.members[0]
        seen = observe(model, inputs, prediction, group, given, carried)
        # Copies: a strategy that writes into what it is shown does not change what is committed.
        token = seen.token.clone()
        confidence = seen.confidence.clone()
        selection = select(row.strategy, seen, carried.memory)
        commit = selection.commit
        if row.eos_run is not None:
            commit = commit | (seen.masked & eos_run(seen, model.profile, row.eos_run))
        edges = selection.edges if row.options.record_edges else None
        outcomes.append(Outcome(commit, token, confidence, edges, likeliest(seen, row.options.record_top)))
        memories.append(selection.memory)
    return outcomes, memories


def forward(model: MaskedLM, one: Pass, pool: KVPool | None, inputs: Inputs) -> Prediction:
    """Logits of the window's columns and, where a strategy reads it, the attention among them."""
    column = torch.arange(one.length, device=inputs.tokens.device)
    need = one.attention
    prediction = model(
        inputs.tokens,
        inputs.span,
        inputs.window,
        valid=column >= inputs.padding[:, None] if one.padded else None,
        cache=None if pool is None else KVCache(pool, inputs.places),
        capture=None if need is None else Capture(need.resolve(model.n_layers), need.rows, need.keys),
    )
    n = width(inputs.window)
    keys = None if need is None else n if need.keys == "window" else one.length
    check_prediction(model, prediction, (len(inputs.tokens), n), keys)
    return prediction


def observe(
    model: MaskedLM, inputs: Inputs, prediction: Prediction, group: Group, given: GroupInputs, carried: Luggage
) -> Observation:
    """What the strategy of a group sees: tokens, confidences, progress, attention."""
    row = group.members[0]
    n = given.choices.shape[1]
    view = (group.rows, slice(0, n))
    logits = prediction.logits[view]
    precision = row.options.confidence_dtype or row.needs.precision
    dtype = logits.dtype if precision == "model" else getattr(torch, precision)
    pick = None if row.constraint is None else partial(constrained, row.constraint, group.members)
    choice = choose(logits, row.options.sampling, model.profile, dtype, carried.uniform, pick)
    attention = None
    need = row.needs.attention
    if need is not None and prediction.attention is not None:
        keys = slice(0, n) if need.keys == "window" else slice(None)
        attention = prediction.attention[(*view, keys)]
    return Observation(
        masked=given.choices,
        token=choice.token,
        confidence=choice.confidence,
        current=take(inputs.tokens, inputs.window)[view],
        progress=Progress(*given.counts),
        position=given.window[:, :1] + torch.arange(n, device=given.window.device),
        window=given.window,
        block=given.block,
        make_logits=choice.make_logits,
        captured=attention,
        drawn=carried.noise,
    )


def constrained(constraint: Constraint, rows: Sequence[Row], scores: Float[Tensor, "g n vocab"]) -> Int[Tensor, "g n"]:
    """The tokens that the rows' constraint proposes. This reads the rows on the host: such passes are not recorded."""
    return torch.stack([constraint.tokens(s, row.canvas, row.window) for row, s in zip(rows, scores, strict=True)])


def eos_run(seen: Observation, profile: Profile, threshold: float) -> Bool[Tensor, "g n"]:
    """The end of the window as far as it is EOS: decided, or predicted with a confidence of at least the threshold."""
    predicted = (seen.token == profile.eos_id) & (seen.confidence >= threshold)
    ends = torch.where(seen.current == profile.mask_id, predicted, seen.current == profile.eos_id)
    return ends.flip(-1).int().cumprod(-1).flip(-1).bool()


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
