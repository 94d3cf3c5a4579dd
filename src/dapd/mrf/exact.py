"""A toy model judged without sampling: its chance of a valid sequence and its loss, over every context that exists."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from math import comb

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dapd.mrf.data import LENGTH, MASK_ID, N_VALUES, all_sequences
from dapd.mrf.network import StackedRADD
from dapd.mrf.paths import predict_in_parts

BASE = N_VALUES + 1
MODELS_AT_ONCE = 2
"""There are 58,438 contexts: more models at once would fill the memory of a small GPU."""


@dataclass(frozen=True)
class Contexts:
    """Every partly masked sequence that some valid sequence completes, those with the most masks first."""

    tokens: Int[Tensor, "contexts nine"]
    n_masked: Int[Tensor, " contexts"]
    completions: Int[Tensor, " contexts"]
    """How many of the 243 valid sequences agree with each context."""
    next: Int[Tensor, "contexts nine three"]
    """Index of the context after committing each value at each masked position; `len(tokens)` where no valid sequence
    agrees with it, and at positions that are not masked."""


@dataclass(frozen=True)
class Exact:
    """The exact measures, one number for each model."""

    valid: list[float]
    """Chance that all four constraints hold when positions are decoded one by one in uniformly random order."""
    loss: list[float]
    """LLaDA's loss per token, with the smallest masking ratio at zero."""


@functools.cache
def contexts() -> Contexts:
    masks = torch.tensor(list(itertools.product((False, True), repeat=LENGTH)))
    partial = torch.where(masks[:, None], MASK_ID, all_sequences()).flatten(0, 1)
    tokens, completions = partial.unique(dim=0, return_counts=True)  # type: ignore[no-untyped-call]
    order = (tokens == MASK_ID).sum(-1).argsort(descending=True, stable=True)
    tokens = tokens[order]
    completions = completions[order]
    place = BASE ** torch.arange(LENGTH)
    codes = tokens @ place
    index = torch.full((BASE**LENGTH,), len(tokens))
    index[codes] = torch.arange(len(tokens))
    committed = codes[:, None, None] + (torch.arange(N_VALUES) - MASK_ID) * place[:, None]
    masked = tokens == MASK_ID
    return Contexts(tokens, masked.sum(-1), completions, torch.where(masked[..., None], index[committed], len(tokens)))


@torch.no_grad()
def judge(network: StackedRADD) -> Exact:
    """Compute the exact measures of every model of a stack."""
    valid = []
    loss = []
    for first in range(0, network.n_models, MODELS_AT_ONCE):
        part = network.pick(slice(first, first + MODELS_AT_ONCE))
        tokens = contexts().tokens.to(part.embedding.device).expand(part.n_models, -1, -1)
        logits = predict_in_parts(part, tokens, attention=False).logits.double().log_softmax(-1)
        valid += chance_of_validity(logits).tolist()
        loss += expected_loss(logits).tolist()
    return Exact(valid, loss)


def chance_of_validity(log_p: Float[Tensor, "models contexts nine three"]) -> Float[Tensor, " models"]:
    """The chance that all four constraints hold. The chance of reaching each context is passed on from contexts with
    more masks to those with fewer, down to the complete sequences."""
    known = contexts()
    device = log_p.device
    n_masked = known.n_masked.to(device)
    following = known.next.to(device)
    reached = torch.zeros(len(log_p), len(known.tokens) + 1, dtype=log_p.dtype, device=device)
    reached[:, 0] = 1
    for k in range(LENGTH, 0, -1):
        here = (n_masked == k).nonzero().squeeze(-1)
        # The last place collects what is of no use: broken constraints, and positions that are not masked.
        passed = reached[:, here, None, None] / k * log_p[:, here].exp()
        reached.index_add_(1, following[here].flatten(), passed.flatten(1))
    return reached[:, :-1][:, n_masked == 0].sum(-1)


def expected_loss(log_p: Float[Tensor, "models contexts nine three"]) -> Float[Tensor, " models"]:
    """LLaDA's loss per token: the mean over all sequences, over 1 to 9 masks, and over all their placements."""
    known = contexts()
    device = log_p.device
    completions = torch.cat([known.completions, torch.zeros(1, dtype=torch.long)])
    # Number of sequences that agree with the context and have this value at this position: the data's conditional
    # probability, times `completions`.
    joint = completions[known.next].double()
    times = torch.tensor([0.0, *(1 / (LENGTH * comb(LENGTH, k) * k) for k in range(1, LENGTH + 1))]).double()
    weight = joint * times[known.n_masked][:, None, None] / len(all_sequences())
    return -(weight.to(device) * log_p).sum((1, 2, 3))
