"""Sampling paths: step-by-step decoding in random order, with the attention that the network showed on the way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dapd.mrf.data import LENGTH, MASK_ID
from dapd.mrf.network import Prediction, StackedRADD

N_STEPS = 7
"""Steps that are measured: after the seventh only one pair of masked nodes is left."""

PART_ROWS = {"cpu": 1024, "cuda": 32_768}
"""Sequences per forward pass: a CPU spends more on fresh memory than on arithmetic when tensors outgrow its cache, and
a GPU's memory must hold the products of all queries with all keys."""


@dataclass(frozen=True)
class Paths:
    """Masks and attention at steps 1..7. All models decode in the same random orders, each with its own tokens."""

    masked: Bool[Tensor, "steps paths n"]
    attention: Float[Tensor, "models steps paths layers heads n n"]
    sequences: Int[Tensor, "models paths n"]
    """The complete sequences at the end of the paths."""


@dataclass(frozen=True)
class Visit:
    """One step of a walk: masks and prediction from before its token is committed, and the tokens from after."""

    masked: Bool[Tensor, "paths n"]
    prediction: Prediction
    after: Int[Tensor, "models paths n"]


def predict_in_parts(network: StackedRADD, tokens: Int[Tensor, "models paths n"], attention: bool) -> Prediction:
    """Predict all sequences, in as many passes as the device's memory requires."""
    n_parts = -(-tokens[..., 0].numel() // PART_ROWS.get(tokens.device.type, PART_ROWS["cpu"]))
    parts = [network(part, attention=attention) for part in tokens.chunk(n_parts, dim=1)]
    seen = [part.attention for part in parts if part.attention is not None]
    return Prediction(torch.cat([part.logits for part in parts], 1), torch.cat(seen, 1) if seen else None)


@torch.no_grad()
def walk(network: StackedRADD, n_paths: int, seed: int, n_with_attention: int) -> Iterator[Visit]:
    """All nine steps of `n_paths` sequences per model; the first `n_with_attention` steps come with attention."""
    device = network.embedding.device
    generator = torch.Generator().manual_seed(seed)
    orders = torch.rand(n_paths, LENGTH, generator=generator).argsort(-1).to(device)
    tokens = torch.full((network.n_models, n_paths, LENGTH), MASK_ID, device=device)
    for step in range(LENGTH):
        prediction = predict_in_parts(network, tokens, step < n_with_attention)
        uniform = torch.rand(prediction.logits.shape, generator=generator, dtype=torch.float64).to(device)
        sampled = (prediction.logits.double().log_softmax(-1) - (-uniform.log()).log()).argmax(-1)
        masked = tokens[0] == MASK_ID
        now = torch.zeros_like(masked).scatter_(1, orders[:, step : step + 1], True)
        tokens = torch.where(now, sampled, tokens)
        yield Visit(masked, prediction, tokens)


def sample_paths(network: StackedRADD, n_paths: int = 100, seed: int = 0) -> Paths:
    """`n_paths` sampling paths of each model."""
    visits = list(walk(network, n_paths, seed, N_STEPS))
    measured = visits[:N_STEPS]
    attention = [v.prediction.attention for v in measured if v.prediction.attention is not None]
    return Paths(
        masked=torch.stack([v.masked for v in measured]),
        attention=torch.stack(attention, 1),
        sequences=visits[-1].after,
    )


def sample_sequences(network: StackedRADD, n: int, seed: int = 0) -> Int[Tensor, "models n nine"]:
    """`n` sequences of each model, decoded one token per forward in random order."""
    *_, last = walk(network, n, seed, 0)
    return last.after
