"""The paper's loop, one pass of it: forward, observe, select, commit.

This is the algorithm. `run_pass` does the first three, on the device, for all rows that share a pass; `commit` does the
last, on the host, for each row. `decoder.py` calls the two again and again while rows come and go; which rows share a
pass is decided in `plan.py`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dapd.decoding.exchange import GroupState, Inputs, Results
from dapd.decoding.plan import Group, PassPlan
from dapd.decoding.row import Constraint, Row
from dapd.decoding.sampling import choose
from dapd.decoding.step import Outcome, Step, Top
from dapd.decoding.tree import tensors
from dapd.errors import StrategyContractError
from dapd.models.base import Capture, MaskedLM, Prediction, Profile, check_prediction
from dapd.models.cache import KVCache, KVPool
from dapd.models.columns import take, width
from dapd.strategies.base import Observation, Progress, check_selection


def run_pass(
    model: MaskedLM, plan: PassPlan, pool: KVPool | None, inputs: Inputs, states: Sequence[GroupState]
) -> Results:
    """Predict every position, and let each group's strategy select among them: outcomes and memories, group by group.

    Nothing here reads a tensor on the host, and everything that differs between two passes of a kind comes in through
    `inputs` and `states`: that is what lets a pass be recorded.
    """
    prediction = forward(model, plan, pool, inputs)
    outcomes: list[Outcome] = []
    memories: list[object] = []
    for group, choices, state in zip(plan.groups, inputs.choices, states, strict=True):
        row = group.members[0]
        seen = observe(model, inputs, prediction, group, choices, state)
        # Taken before the strategy runs: if it writes into what it is shown, that does not change what is committed.
        token = seen.token.clone()
        confidence = seen.confidence.clone()
        run = None if row.eos_run is None else seen.masked & eos_run(seen, model.profile, row.eos_run)
        top = likeliest(seen, row.options.record_top)
        selection = row.strategy.select(seen, state.memory)
        check_selection(row.strategy, selection, seen.masked.shape)
        check_memory(row, selection.memory, len(group.members))
        chosen = selection.commit if run is None else selection.commit | run
        edges = selection.edges if row.options.record_edges else None
        outcomes.append(Outcome(commit=chosen, token=token, confidence=confidence, edges=edges, top=top))
        memories.append(selection.memory)
    return outcomes, memories


def forward(model: MaskedLM, plan: PassPlan, pool: KVPool | None, inputs: Inputs) -> Prediction:
    """Logits of the window's columns and, where a strategy reads it, the attention among them."""
    column = torch.arange(plan.length, device=inputs.tokens.device)
    need = plan.attention
    prediction = model(
        inputs.tokens,
        inputs.span,
        inputs.window,
        valid=column >= inputs.padding[:, None] if plan.padded else None,
        cache=None if pool is None else KVCache(pool, inputs.places),
        capture=None if need is None else Capture(need.resolve(model.n_layers), need.rows, need.keys),
    )
    n = width(inputs.window)
    keys = None if need is None else n if need.keys == "window" else plan.length
    check_prediction(model, prediction, (len(inputs.tokens), n), keys)
    return prediction


def observe(
    model: MaskedLM,
    inputs: Inputs,
    prediction: Prediction,
    group: Group,
    choices: Bool[Tensor, "g n"],
    state: GroupState,
) -> Observation:
    """What the strategy of a group sees: tokens, confidences, progress, attention."""
    row = group.members[0]
    n = choices.shape[1]
    window = inputs.window_bounds[group.rows]
    view = (group.rows, slice(0, n))
    logits = prediction.logits[view]
    precision = row.options.confidence_dtype or row.needs.precision
    dtype = logits.dtype if precision == "model" else getattr(torch, precision)
    pick = None if row.constraint is None else partial(constrained, row.constraint, group.members)
    choice = choose(logits, row.options.sampling, model.profile, dtype, state.uniform, pick)
    attention = None
    need = row.needs.attention
    if need is not None and prediction.attention is not None:
        attention = prediction.attention[view]
        if need.keys == "window":
            attention = attention[..., :n]
        else:
            attention = without_padding(attention, inputs.padding[group.rows])
    return Observation(
        masked=choices,
        token=choice.token,
        confidence=choice.confidence,
        current=take(inputs.tokens, inputs.window)[view],
        progress=Progress(*inputs.counts[:, group.rows]),
        position=window[:, :1] + torch.arange(n, device=window.device),
        window=window,
        block=inputs.block_bounds[group.rows],
        make_logits=choice.make_logits,
        captured=attention,
        drawn=state.noise,
    )


def without_padding(values: Float[Tensor, "g n length"], padding: Int[Tensor, " g"]) -> Float[Tensor, "g n length"]:
    """The values with their last dimension indexed by each row's own positions; 0 after its last position."""
    length = values.shape[-1]
    column = padding[:, None] + torch.arange(length, device=padding.device)
    return take(values, column.clamp_max(length - 1), 2).masked_fill((column >= length)[:, None], 0)


def constrained(constraint: Constraint, rows: Sequence[Row], scores: Float[Tensor, "g n vocab"]) -> Int[Tensor, "g n"]:
    """The tokens that the rows' constraint proposes. This reads the rows on the host: such passes are not recorded."""
    return torch.stack([constraint.tokens(s, row.canvas, row.window) for row, s in zip(rows, scores, strict=True)])


def eos_run(seen: Observation, profile: Profile, threshold: float) -> Bool[Tensor, "g n"]:
    """The end of the window as far as it is EOS: decided, or predicted with a confidence of at least the threshold."""
    predicted = (seen.token == profile.eos_id) & (seen.confidence >= threshold)
    ends = torch.where(seen.current == profile.mask_id, predicted, seen.current == profile.eos_id)
    return ends.flip(-1).int().cumprod(-1).flip(-1).bool()


def check_memory(row: Row, memory: object, n_rows: int) -> None:
    """Refuse a memory of which no row could take its part along."""
    values = tensors(memory)
    if any(value.shape[:1] != (n_rows,) for value in values):
        shapes = ", ".join(str(list(value.shape)) for value in values)
        raise StrategyContractError(
            f"strategy {type(row.strategy).__name__} remembers tensors of shape {shapes} for a batch of {n_rows}; "
            "the first dimension of each must be the batch"
        )


def likeliest(seen: Observation, count: int) -> Top | None:
    """The likeliest tokens of each position; None where none are asked for."""
    if not count:
        return None
    best = seen.logits.log_softmax(-1).topk(min(count, seen.logits.shape[-1]), -1)
    return Top(best.indices, best.values)


def commit(row: Row, outcome: Outcome, began: float, shared_by: int) -> Step:
    """Write the selected tokens into a row's text, as far as the row allows it, and let the row advance.

    `began` is when the pass was started, `shared_by` the number of rows that took part in it.
    """
    chosen = row.allowed(outcome)
    canvas = row.canvas.commit(row.window, chosen, outcome.token)
    tail = row.tail(canvas) if row.options.early_stop else None
    if tail is not None:
        canvas = replace(canvas, tokens=torch.where(tail, row.eos_id, canvas.tokens))
    now = time.perf_counter()
    row.began = began if row.passes == 0 else row.began
    step = Step(
        row=row.name,
        index=row.passes,
        window=row.window,
        commit=chosen,
        token=outcome.token,
        confidence=outcome.confidence,
        tail=tail,
        edges=outcome.edges,
        canvas=canvas,
        seconds=now - row.began,
        compute_seconds=(now - began) / shared_by,
        top=outcome.top,
    )
    row.advance(canvas)
    return step
