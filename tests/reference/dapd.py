"""DAPD, the rule as the authors run it (spec/dapd.md), and the other readings of its ambiguity table."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from reference.common import Decoded, best, forbid, masked_in, ranked
from reference.network import Sequence, columns, predictions


@dataclass(frozen=True)
class Rule:
    tau_min: float = 0.01
    tau_max: float = 0.15
    shortcut: Literal["staged", "direct", "none"] = "staged"
    edge_norm: Literal["row_max", "none", "row_sum", "global_max"] = "row_max"
    direction: Literal["candidate_row", "either", "both"] = "candidate_row"
    late_rule: Literal["union", "switch", "filter"] = "union"
    certain: float = 0.998
    confident: float = 0.9
    layers: tuple[int, ...] | None = None
    rows: Literal["position", "predictor"] = "position"


def last_layers(n: int) -> list[int]:
    """The last 30%, rounded up."""
    return list(range(math.floor(0.7 * n), n))


def graph(
    attention: dict[int, list[float]], nodes: list[int], rule: Rule
) -> tuple[dict[int, float], dict[tuple[int, int], float]]:
    """Degrees of the raw scores, and the edge scores after normalising."""
    shift, lowest = (1 if rule.rows == "predictor" else 0), min(attention)

    def a(i: int, j: int) -> float:
        return attention[max(i - shift, lowest)][j]

    s = {(i, j): 0.0 if i == j else (a(i, j) + a(j, i)) / 2 for i in nodes for j in nodes}
    degree = {i: sum(s[i, j] for j in nodes) for i in nodes}
    unit = {}
    for i in nodes:
        row = [s[i, j] for j in nodes]
        if rule.edge_norm == "row_max":
            unit[i] = max(max(row), 1e-8)
        elif rule.edge_norm == "row_sum":
            unit[i] = max(sum(row), 1e-8)
        elif rule.edge_norm == "global_max":
            unit[i] = max(*s.values(), 1e-8)
        else:
            unit[i] = 1.0
    return degree, {(i, j): s[i, j] / unit[i] for i in nodes for j in nodes}


def linked(edges: dict[tuple[int, int], float], i: int, j: int, tau: float, direction: str) -> bool:
    """Whether the candidate i is kept out by j, which is in the set."""
    there, back = edges[i, j] > tau, edges[j, i] > tau
    return {"candidate_row": there, "either": there or back, "both": there and back}[direction]


def select(
    attention: dict[int, list[float]], token: dict[int, int], confidence: dict[int, float], progress: float, rule: Rule
) -> list[int]:
    nodes = sorted(token)
    tau = rule.tau_min + (rule.tau_max - rule.tau_min) * progress
    degree, edges = graph(attention, nodes, rule)
    late = rule.shortcut == "staged" and progress >= 0.5
    sure = [i for i in nodes if confidence[i] >= rule.confident]
    if late and rule.late_rule == "switch":
        return sure or ranked(nodes, confidence)[:1]
    direct = [i for i in nodes if rule.shortcut == "direct" and confidence[i] >= rule.certain]
    candidates = [i for i in nodes if i not in direct]
    if late and rule.late_rule == "filter" and sure:
        candidates = sure
    chosen: list[int] = []
    for i in ranked(candidates, {i: degree[i] * confidence[i] for i in candidates}):
        if not any(linked(edges, i, j, tau, rule.direction) for j in chosen):
            chosen.append(i)
    if late and rule.late_rule == "union":
        chosen += [i for i in sure if i not in chosen]
    return chosen + direct


def decode(
    sequence: Sequence,
    prompt: list[int],
    n_new: int,
    rule: Rule,
    *,
    block_length: int,
    reuse: Literal["none", "prefix", "dual"] = "none",
) -> Decoded:
    """Where the table of readings is silent: `switch` takes the best position if none is confident, `filter` all."""
    mask_id = sequence.config.profile.mask_id
    out = Decoded([*prompt, *[mask_id] * n_new])
    layers = last_layers(sequence.config.n_layers) if rule.layers is None else rule.layers
    for first in range(len(prompt), len(out.tokens), block_length):
        stop, fresh = first + block_length, True
        while nodes := masked_in(out.tokens, mask_id, first, stop):
            left = len(masked_in(out.tokens, mask_id, len(prompt), len(out.tokens)))
            fed = columns(reuse, first, stop, len(out.tokens), fresh=fresh)
            rows = predictions(sequence, out.tokens, fed)
            mean = sum(sequence.attention[layer] for layer in layers) / len(layers)
            attention = dict(zip(fed, mean.tolist(), strict=True))
            token, confidence = {}, {}
            for i in nodes:
                token[i], confidence[i] = best(forbid(rows[i].float(), mask_id))
            out.commit({i: token[i] for i in select(attention, token, confidence, 1 - left / n_new, rule)})
            fresh = False
    return out
