"""How well attention shows the true graph: per layer, edges against non-edges among masked answer positions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dapd.generation import DiffusionLM
from dapd.graph import edge_scores
from dapd.lab.tasks import Task, pieces
from dapd.models.base import Capture


@dataclass(frozen=True)
class EdgeAuc:
    """How well the edge scores of some layers find the true edges, on one task at one share of masked positions."""

    task: str
    layers: tuple[int, ...]
    masked: float
    auc: float
    pairs: int


def auc(scores: Float[Tensor, " n"], positive: Bool[Tensor, " n"]) -> float:
    """Probability that a positive scores higher than a negative, ties counting half."""
    _, group, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    last = counts.double().cumsum(0)
    rank = (last - (counts - 1) / 2)[group]
    n_pos, n_neg = int(positive.sum()), int((~positive).sum())
    if not n_pos or not n_neg:
        return float("nan")
    return float((rank[positive].sum() - n_pos * (n_pos + 1) / 2) / (n_pos * n_neg))


@torch.no_grad()
def edge_auc(
    model: DiffusionLM, task: Task, layer_sets: Sequence[tuple[int, ...]], *, n: int = 40, masked: float = 1.0
) -> list[EdgeAuc]:
    """AUC of the symmetrised attention for each set of layers, pooled over `n` test prompts."""
    network = model.network
    profile = model.network.profile
    pairs: dict[tuple[int, ...], tuple[list[Tensor], list[Tensor]]] = {layers: ([], []) for layers in layer_sets}
    for number, example in enumerate(task.examples(n)):
        true = task.edges(example, pieces(example.answer))
        if not true:
            continue
        answer = model.tokenizer.encode(example.answer, special=False)
        prompt = model.encode([{"role": "user", "content": example.prompt}])
        rng = random.Random(number)
        hidden = [i for i in range(len(answer)) if rng.random() < masked] or [0]
        shown = [profile.mask_id if i in set(hidden) else token for i, token in enumerate(answer)]
        tail = [profile.eos_id if masked < 1 else profile.mask_id] * (task.room - len(answer))
        row = prompt + shown + tail
        tokens = torch.tensor([row], device=network.device)
        window = slice(len(prompt), len(prompt) + len(answer))
        everything = slice(0, len(row))
        nodes = torch.zeros(len(answer), dtype=torch.bool)
        nodes[hidden] = True
        upper = torch.ones(len(answer), len(answer)).triu(1).bool() & nodes[:, None] & nodes[None, :]
        graph = torch.zeros(len(answer), len(answer), dtype=torch.bool)
        for i, j in true:
            graph[i, j] = graph[j, i] = True
        alone = {}
        for layer in sorted({layer for layers in layer_sets for layer in layers}):
            capture = Capture(frozenset({layer}))
            attention = network(tokens, everything, window, capture=capture).attention
            assert attention is not None
            alone[layer] = attention[0].float().cpu()
        for layers in layer_sets:
            # A pass that captures several layers gives their mean.
            score = edge_scores(torch.stack([alone[layer] for layer in layers]).mean(0), nodes)
            pairs[layers][0].append(score[upper])
            pairs[layers][1].append(graph[upper])
    out = []
    for layers, (scores, labels) in pairs.items():
        if scores:
            pooled = torch.cat(scores)
            label = torch.cat(labels)
            out.append(EdgeAuc(task.name, layers, masked, auc(pooled, label), len(label)))
    return out
