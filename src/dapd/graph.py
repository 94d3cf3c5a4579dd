"""From attention to a set that may be unmasked together: edge scores, degrees, edges, the greedy independent set.

Tensors in, tensors out; `*b` is any number of batch dimensions. Notation as in the paper: positions are nodes, s_ij =
(a_ij + a_ji) / 2 is the edge score, d_i = sum_j s_ij the degree, tau the threshold above which a score is an edge.
"""

from __future__ import annotations

import ctypes
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dapd import kernels

EdgeNorm = Literal["row_max", "none", "row_sum", "global_max"]
Direction = Literal["candidate_row", "either", "both"]

LARGE = 512
"""Number of positions from which a CPU spends its time reading n x n matrices, so that other algorithms pay off."""

CACHED = 1 << 18
"""Number of scores that `normalised_edges` works on at a time on a CPU, so that they stay in its cache."""

TINY = 1e-8
"""Lower bound of a normaliser: a node without any attention gets no edges instead of a division by zero."""


def edge_scores(attention: Float[Tensor, "*b n n"], nodes: Bool[Tensor, "*b n"]) -> Float[Tensor, "*b n n"]:
    """s_ij = (a_ij + a_ji) / 2 between different nodes, 0 elsewhere."""
    if attention.device.type == "cpu" and nodes.shape[-1] >= LARGE:
        scores = _transposed(attention).add_(attention).div_(2)
        scores.masked_fill_(~nodes.unsqueeze(-1), 0).masked_fill_(~nodes.unsqueeze(-2), 0)
    else:
        pairs = nodes.unsqueeze(-1) & nodes.unsqueeze(-2)
        scores = torch.where(pairs, attention + attention.mT, 0).div_(2)
    scores.diagonal(dim1=-2, dim2=-1).zero_()
    return scores


def _transposed(matrices: Float[Tensor, "*b n n"]) -> Float[Tensor, "*b n n"]:
    """Transposed copies of the matrices, made one by one: torch works in tiles on one matrix, but not on a batch."""
    n = matrices.shape[-1]
    out = torch.empty_like(matrices, memory_format=torch.contiguous_format)
    for target, source in zip(out.view(-1, n, n), matrices.reshape(-1, n, n), strict=True):
        target.copy_(source.mT)
    return out


def degrees(scores: Float[Tensor, "*b n n"]) -> Float[Tensor, "*b n"]:
    """d_i = sum_j s_ij, on the raw scores."""
    return scores.sum(-1)


def normalise(scores: Float[Tensor, "*b n n"], norm: EdgeNorm) -> Float[Tensor, "*b n n"]:
    """Scores on the scale that tau is compared with. Normalised by row they are no longer symmetric."""
    scale = _scale(scores, norm)
    return scores if scale is None else scores / scale


def _scale(scores: Float[Tensor, "*b n n"], norm: EdgeNorm) -> Float[Tensor, "*b _ 1"] | None:
    """The divisor of the scores: one number for each row, or one for all rows; None: they are not divided."""
    match norm:
        case "none":
            return None
        case "row_max":
            scale = scores.amax(-1, keepdim=True)
        case "row_sum":
            scale = scores.sum(-1, keepdim=True)
        case "global_max":
            scale = scores.amax((-2, -1), keepdim=True)
    return scale.clamp_min(TINY)


def edges_above(
    scores: Float[Tensor, "*b n n"], tau: Float[Tensor, "*b"], direction: Direction = "candidate_row"
) -> Bool[Tensor, "*b n n"]:
    """The edges, where a score exceeds tau: edges[i, j] means that a taken j keeps candidate i out."""
    return _directed(scores > tau[..., None, None], direction)


def _directed(edge: Bool[Tensor, "*b n n"], direction: Direction) -> Bool[Tensor, "*b n n"]:
    match direction:
        case "candidate_row":
            return edge
        case "either":
            return edge | edge.mT
        case "both":
            return edge & edge.mT


def normalised_edges(
    scores: Float[Tensor, "*b n n"], norm: EdgeNorm, tau: Float[Tensor, "*b"], direction: Direction
) -> Bool[Tensor, "*b n n"]:
    """`edges_above` for normalised scores: on a CPU a few rows at a time, so that the quotients stay in its cache."""
    n = scores.shape[-1]
    if scores.device.type != "cpu" or n < LARGE:
        return edges_above(normalise(scores, norm), tau, direction)
    scale = _scale(scores, norm)
    edge = torch.empty(scores.shape, dtype=torch.bool)
    height = max(1, CACHED // n)
    for first in range(0, n, height):
        rows = slice(first, first + height)
        part = scores[..., rows, :]
        if scale is not None:
            part = part / (scale if scale.shape[-2] == 1 else scale[..., rows, :])
        torch.gt(part, tau[..., None, None], out=edge[..., rows, :])
    return _directed(edge, direction)


def by_priority(priority: Float[Tensor, "*b n"], nodes: Bool[Tensor, "*b n"]) -> Int[Tensor, "*b n"]:
    """The positions in order: nodes first, by falling priority, the lowest position first among equals."""
    lowest = torch.finfo(priority.dtype).min
    key = torch.where(nodes, priority.clamp_min(lowest), -torch.inf)
    return key.argsort(dim=-1, descending=True, stable=True)


def ranks(priority: Float[Tensor, "*b n"], nodes: Bool[Tensor, "*b n"]) -> Int[Tensor, "*b n"]:
    """Place of each position in the order of `by_priority`, from 0."""
    order = by_priority(priority, nodes)
    return torch.empty_like(order).scatter_(
        -1, order, torch.arange(order.shape[-1], device=order.device).expand_as(order)
    )


def independent_set(
    edges: Bool[Tensor, "*b n n"], priority: Float[Tensor, "*b n"], nodes: Bool[Tensor, "*b n"]
) -> Bool[Tensor, "*b n"]:
    """The set that a greedy scan takes: each node i in order of priority, unless edges[i, j] holds for a taken j.

    It is found in parallel rounds (Blelloch, Fineman and Shun, 2012): each round decides every node whose higher-ranked
    blockers are all decided. The result always equals that of the scan, for directed edges too; the number of rounds is
    the longest chain of blockers that wait for each other, a handful in practice. On a GPU one kernel runs all rounds.
    On a CPU a large graph is scanned: one round over it costs more than the whole scan, which reads each row once.
    """
    n = nodes.shape[-1]
    if nodes.numel() and kernels.usable(nodes):
        from dapd.kernels import selection

        if n <= selection.MAX_NODES:
            flat = selection.independent_set(edges.reshape(-1, n, n), priority.reshape(-1, n), nodes.reshape(-1, n))
            return flat.view(nodes.shape)
    if nodes.device.type == "cpu" and n >= LARGE:
        return by_scan(edges, priority, nodes)
    return by_rounds(edges, priority, nodes)


def by_rounds(
    edges: Bool[Tensor, "*b n n"], priority: Float[Tensor, "*b n"], nodes: Bool[Tensor, "*b n"]
) -> Bool[Tensor, "*b n"]:
    """The greedy set in parallel rounds, each of which decides every node that can be decided."""
    rank = ranks(priority, nodes)
    earlier = rank.unsqueeze(-2) < rank.unsqueeze(-1)
    blockers = edges & earlier & nodes.unsqueeze(-2)
    taken = torch.zeros_like(nodes)
    open_ = nodes
    rounds_between_syncs = 1 if nodes.device.type == "cpu" else 8
    while open_.any():
        for _ in range(rounds_between_syncs):
            blocked = (blockers & taken.unsqueeze(-2)).any(-1)
            waits = (blockers & open_.unsqueeze(-2)).any(-1)
            taken = taken | (open_ & ~blocked & ~waits)
            open_ = open_ & ~blocked & waits
    return taken


def by_scan(
    edges: Bool[Tensor, "*b n n"], priority: Float[Tensor, "*b n"], nodes: Bool[Tensor, "*b n"]
) -> Bool[Tensor, "*b n"]:
    """The greedy set, node by node, on a CPU.

    A row of the graph is read as one integer of n bytes, and so is the set of taken nodes: a single `and` of the two
    tells whether a node has an edge to a taken one.
    """
    n = nodes.shape[-1]
    orders = by_priority(priority, nodes).reshape(-1, n).tolist()
    counts = nodes.reshape(-1, n).sum(-1).tolist()
    taken = torch.zeros(len(orders), n, dtype=torch.bool)
    for graph, order, count, out in zip(edges.reshape(-1, n, n), orders, counts, taken, strict=True):
        whole = graph.contiguous()
        rows = ctypes.string_at(whole.data_ptr(), n * n)
        members = 0
        chosen = []
        for node in order[:count]:
            if not int.from_bytes(rows[node * n : node * n + n], "little") & members:
                members |= 1 << (8 * node)
                chosen.append(node)
        out[chosen] = True
    return taken.view(nodes.shape)
