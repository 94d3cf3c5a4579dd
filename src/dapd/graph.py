"""From attention to a set that may be unmasked together: edge scores, degrees, edges, the greedy independent set.

Tensors in, tensors out; `*b` is any number of batch dimensions. Notation as in the paper: positions are nodes, s_ij =
(a_ij + a_ji) / 2 is the edge score, d_i = sum_j s_ij the degree, tau the threshold above which a score is an edge.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dapd import kernels

EdgeNorm = Literal["row_max", "none", "row_sum", "global_max"]
Direction = Literal["candidate_row", "either", "both"]

TINY = 1e-8
"""No normaliser is smaller: a node without any attention has no edges rather than a division by zero."""


def edge_scores(attention: Float[Tensor, "*b n n"], nodes: Bool[Tensor, "*b n"]) -> Float[Tensor, "*b n n"]:
    """s_ij = (a_ij + a_ji) / 2 between different nodes, 0 elsewhere."""
    pairs = nodes.unsqueeze(-1) & nodes.unsqueeze(-2)
    scores = torch.where(pairs, attention + attention.mT, 0).div_(2)
    scores.diagonal(dim1=-2, dim2=-1).zero_()
    return scores


def degrees(scores: Float[Tensor, "*b n n"]) -> Float[Tensor, "*b n"]:
    """d_i = sum_j s_ij, on the raw scores."""
    return scores.sum(-1)


def normalise(scores: Float[Tensor, "*b n n"], norm: EdgeNorm) -> Float[Tensor, "*b n n"]:
    """Scores on a scale that tau can be compared with. By row, the result is not symmetric."""
    match norm:
        case "none":
            return scores
        case "row_max":
            scale = scores.amax(-1, keepdim=True)
        case "row_sum":
            scale = scores.sum(-1, keepdim=True)
        case "global_max":
            scale = scores.amax((-2, -1), keepdim=True)
    return scores / scale.clamp_min(TINY)


def conflicts(
    scores: Float[Tensor, "*b n n"], tau: Float[Tensor, "*b"], direction: Direction = "candidate_row"
) -> Bool[Tensor, "*b n n"]:
    """conflicts[i, j]: a taken j keeps candidate i out."""
    edge = scores > tau[..., None, None]
    match direction:
        case "candidate_row":
            return edge
        case "either":
            return edge | edge.mT
        case "both":
            return edge & edge.mT


def ranks(priority: Float[Tensor, "*b n"], nodes: Bool[Tensor, "*b n"]) -> Int[Tensor, "*b n"]:
    """Place of each position when nodes come first, by falling priority, the lowest position first among equals."""
    lowest = torch.finfo(priority.dtype).min
    key = torch.where(nodes, priority.clamp_min(lowest), -torch.inf)
    order = key.argsort(dim=-1, descending=True, stable=True)
    return torch.empty_like(order).scatter_(
        -1, order, torch.arange(order.shape[-1], device=order.device).expand_as(order)
    )


def independent_set(
    blocks: Bool[Tensor, "*b n n"], priority: Float[Tensor, "*b n"], nodes: Bool[Tensor, "*b n"]
) -> Bool[Tensor, "*b n"]:
    """The set that a greedy scan takes: node i, in order of priority, unless a taken j has blocks[i, j].

    By parallel rounds (Blelloch, Fineman and Shun, 2012): a node all of whose higher-ranked blockers are decided is
    itself decided, so each round settles every such node at once. Always equal to the scan, for directed relations
    too; the number of rounds is the longest chain of blockers that wait for each other, a handful in practice. On a
    GPU one kernel runs all rounds.
    """
    if nodes.numel() and kernels.usable(nodes):
        from dapd.kernels import selection

        n = nodes.shape[-1]
        if n <= selection.MAX_NODES:
            flat = selection.independent_set(blocks.reshape(-1, n, n), priority.reshape(-1, n), nodes.reshape(-1, n))
            return flat.view(nodes.shape)
    rank = ranks(priority, nodes)
    earlier = rank.unsqueeze(-2) < rank.unsqueeze(-1)
    blockers = blocks & earlier & nodes.unsqueeze(-2)
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
