"""The RADD network without time, written for a stack of models: every parameter has a leading dimension, one per model.

A stack of thirty small models is one batched matrix product instead of thirty; a stack of one is the plain model. The
network is RADD's: learned embedding, rotary positions alone, pre-norm blocks of bidirectional attention and a GELU
feed-forward of four times the width. Its last layer predicts values only: RADD's mask channel never enters the softmax.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from dapd.errors import DapdError
from dapd.mrf.data import LENGTH, N_VALUES

ROPE_BASE = 10_000.0


class Positions(StrEnum):
    """How the network knows where a token stands."""

    ROTARY = "rotary"
    """RADD's: queries and keys are rotated, so attention sees distances only; a canvas of equal tokens stays equal."""
    LEARNED = "learned"
    """A learned vector per position, added to the embedding, and nothing else."""
    SINCOS = "sincos"
    """DiT's: a fixed table of sines and cosines, added to the embedding, and nothing else."""
    ROTARY_LEARNED = "rotary-learned"
    """Rotated queries and keys, and a learned vector per position."""


@dataclass(frozen=True)
class Shape:
    """The settings that determine the parameters of a network and their shapes."""

    n_layers: int = 8
    """Transformer blocks; the paper says eight."""
    width: int = 64
    """Size of the residual stream; the paper does not say."""
    n_heads: int = 4
    """Attention heads per block; the paper does not say."""
    gated: bool = False
    """A learned gate, from zero, on each residual branch: DiT's adaLN-Zero with its conditioning held constant."""
    positions: Positions = Positions.ROTARY
    """How the network tells positions apart."""

    def __post_init__(self) -> None:
        if self.n_layers < 1 or self.n_heads < 1:
            raise DapdError(f"layers is {self.n_layers} and heads {self.n_heads}; both must be at least 1")
        if self.width < 1 or self.width % (2 * self.n_heads):
            raise DapdError(f"width {self.width} must be a multiple of twice the number of heads ({self.n_heads})")


@dataclass(frozen=True)
class Prediction:
    """The output of a forward pass."""

    logits: Float[Tensor, "models batch n values"]
    attention: Float[Tensor, "models batch layers heads n n"] | None
    """Softmax over all keys, in every layer and head; None unless it was asked for."""


class Block(nn.Module):
    """Names and shapes of one block's parameters, for all layers of all models at once: [models, layers, ...]."""

    def __init__(self, n_models: int, shape: Shape) -> None:
        super().__init__()
        d = shape.width
        lead = (n_models, shape.n_layers)
        self.norm1 = nn.Parameter(torch.ones(*lead, d))
        self.norm1_bias = nn.Parameter(torch.zeros(*lead, d))
        self.qkv = nn.Parameter(torch.empty(*lead, d, 3 * d))
        self.out = nn.Parameter(torch.empty(*lead, d, d))
        self.norm2 = nn.Parameter(torch.ones(*lead, d))
        self.norm2_bias = nn.Parameter(torch.zeros(*lead, d))
        self.up = nn.Parameter(torch.empty(*lead, d, 4 * d))
        self.up_bias = nn.Parameter(torch.empty(*lead, 4 * d))
        self.down = nn.Parameter(torch.empty(*lead, 4 * d, d))
        self.down_bias = nn.Parameter(torch.empty(*lead, d))
        if shape.gated:
            self.gate1 = nn.Parameter(torch.zeros(*lead, d))
            self.gate2 = nn.Parameter(torch.zeros(*lead, d))

    def layers(self) -> list[dict[str, Tensor]]:
        """One dictionary per layer. `unbind`, because the gradient of a slice is a zero-filled copy of the whole."""
        columns = {name: parameter.unbind(1) for name, parameter in self.named_parameters()}
        return [{name: column[i] for name, column in columns.items()} for i in range(self.qkv.shape[1])]


class StackedRADD(nn.Module):
    """`n_models` independent networks of one shape; model m of the stack never sees the others."""

    cos: Tensor
    sin: Tensor
    table: Tensor

    def __init__(self, n_models: int, shape: Shape) -> None:
        super().__init__()
        self.n_models = n_models
        self.shape = shape
        d = shape.width
        self.embedding = nn.Parameter(torch.empty(n_models, N_VALUES + 1, d))
        self.block = Block(n_models, shape)
        self.norm = nn.Parameter(torch.ones(n_models, d))
        self.norm_bias = nn.Parameter(torch.zeros(n_models, d))
        self.head = nn.Parameter(torch.zeros(n_models, d, N_VALUES))
        self.head_bias = nn.Parameter(torch.zeros(n_models, N_VALUES))
        if shape.positions in (Positions.LEARNED, Positions.ROTARY_LEARNED):
            self.position = nn.Parameter(torch.empty(n_models, LENGTH, d))
        rotary = shape.positions in (Positions.ROTARY, Positions.ROTARY_LEARNED)
        angles = position_angles(d // shape.n_heads // 2) * rotary
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        fixed = position_angles(d // 2)
        self.register_buffer("table", torch.cat([fixed.sin(), fixed.cos()], dim=-1), persistent=False)
        self.run_block: Callable[..., Tensor] = transformer_block

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    def absolute(self, batch: int) -> Tensor | float:
        """The position vectors to add to the embedding, for tokens flattened to [batch * n]; 0 if there are none."""
        match self.shape.positions:
            case Positions.ROTARY:
                return 0.0
            case Positions.SINCOS:
                return self.table.repeat(batch, 1)
            case Positions.LEARNED | Positions.ROTARY_LEARNED:
                return self.position.repeat(1, batch, 1)

    def pick(self, models: slice) -> StackedRADD:
        """Some of the models, as a stack of their own."""
        weights = {name: tensor[models] for name, tensor in self.state_dict().items()}
        picked = StackedRADD(len(weights["embedding"]), self.shape)
        picked.load_state_dict(weights)
        return picked.to(self.embedding.device).eval().requires_grad_(False)

    def forward(
        self, tokens: Int[Tensor, "models batch n"], *, dropout: Tensor | None = None, attention: bool = False
    ) -> Prediction:
        """Predict the values of all positions. `dropout` is a probability per model (None: no dropout); `attention`
        asks for the attention weights, too."""
        models, batch, length = tokens.shape
        if models != self.n_models or length != LENGTH:
            raise DapdError(f"tokens are {tuple(tokens.shape)}; this stack takes ({self.n_models}, batch, {LENGTH})")
        # A product with one-hot rows: the gradient of an indexed table would be a contended scatter on a GPU.
        one_hot = tokens.reshape(models, -1, 1) == torch.arange(N_VALUES + 1, device=tokens.device)
        x = torch.bmm(one_hot.to(self.embedding.dtype), self.embedding) + self.absolute(batch)
        seen = []
        for layer in self.block.layers():
            if attention:
                seen.append(attention_weights(x, layer, self.shape.n_heads, self.cos, self.sin))
            x = self.run_block(x, layer, self.shape.n_heads, self.cos, self.sin, dropout)
        x = affine_norm(x, self.norm, self.norm_bias)
        logits = torch.baddbmm(self.head_bias.unsqueeze(1), x, self.head)
        return Prediction(logits.view(models, batch, length, -1), torch.stack(seen, 2) if attention else None)


def position_angles(n_frequencies: int) -> Float[Tensor, "n frequencies"]:
    return torch.outer(torch.arange(LENGTH), ROPE_BASE ** (-torch.arange(n_frequencies) / n_frequencies))


def affine_norm(x: Float[Tensor, "m t d"], weight: Float[Tensor, "m d"], bias: Float[Tensor, "m d"]) -> Tensor:
    return F.layer_norm(x, x.shape[-1:]) * weight.unsqueeze(1) + bias.unsqueeze(1)


def rotate(x: Float[Tensor, "*b n head"], cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def queries_keys_values(
    x: Float[Tensor, "m t d"], layer: dict[str, Tensor], n_heads: int, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, each [models * batch, heads, n, head]: to attention, the models are just more rows."""
    hidden = torch.bmm(affine_norm(x, layer["norm1"], layer["norm1_bias"]), layer["qkv"])
    q, k, v = hidden.view(-1, LENGTH, 3, n_heads, x.shape[-1] // n_heads).permute(2, 0, 3, 1, 4).unbind(0)
    return rotate(q, cos, sin), rotate(k, cos, sin), v


def attention_weights(
    x: Float[Tensor, "m t d"], layer: dict[str, Tensor], n_heads: int, cos: Tensor, sin: Tensor
) -> Float[Tensor, "m b heads n n"]:
    """The attention weights of a block, computed once more: the block's own attention does not return them."""
    q, k, _ = queries_keys_values(x, layer, n_heads, cos, sin)
    weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
    return weights.view(x.shape[0], -1, *weights.shape[1:])


def transformer_block(
    x: Float[Tensor, "m t d"],
    layer: dict[str, Tensor],
    n_heads: int,
    cos: Tensor,
    sin: Tensor,
    dropout: Float[Tensor, " m"] | None,
) -> Float[Tensor, "m t d"]:
    q, k, v = queries_keys_values(x, layer, n_heads, cos, sin)
    mixed = (mix_short(q, k, v) if q.is_cuda else F.scaled_dot_product_attention(q, k, v)).transpose(1, 2)
    mixed = mixed.reshape(x.shape)
    x = x + gate(drop(torch.bmm(mixed, layer["out"]), dropout), layer.get("gate1"))
    hidden = affine_norm(x, layer["norm2"], layer["norm2_bias"])
    hidden = F.gelu(torch.bmm(hidden, layer["up"]) + layer["up_bias"].unsqueeze(1), approximate="tanh")
    update = torch.bmm(hidden, layer["down"]) + layer["down_bias"].unsqueeze(1)
    return x + gate(drop(update, dropout), layer.get("gate2"))


def mix_short(q: Float[Tensor, "b h n d"], k: Float[Tensor, "b h n d"], v: Float[Tensor, "b h n d"]) -> Tensor:
    """Attention as sums of products, which torch.compile fuses: SDPA's kernels waste a tile of 64 on nine tokens."""
    scores = (q.unsqueeze(3) * k.unsqueeze(2)).sum(-1) / math.sqrt(q.shape[-1])
    return (scores.softmax(-1).unsqueeze(-1) * v.unsqueeze(2)).sum(3)


def gate(x: Float[Tensor, "m t d"], weight: Float[Tensor, "m d"] | None) -> Tensor:
    return x if weight is None else x * weight.unsqueeze(1)


def drop(x: Float[Tensor, "m t d"], probability: Float[Tensor, " m"] | None) -> Tensor:
    """Dropout whose probability differs from model to model."""
    if probability is None:
        return x
    p = probability[:, None, None]
    return x * (torch.rand_like(x) >= p) / (1 - p)


@torch.no_grad()
def initialise(network: StackedRADD, seeds: list[int], norm_biases: list[float]) -> None:
    """RADD's initial weights, model by model, so that a model does not depend on the stack it was trained in.

    Linear layers and the embedding are uniform in +-1/sqrt(inputs) (kaiming-uniform with a = sqrt 5, the default); the
    last layer is zero. RADD's layer norms start with a *bias* of one, which `norm_biases` can undo.
    """
    fan_in = {"qkv": 1, "out": 1, "up": 1, "up_bias": 1, "down": 4, "down_bias": 4}
    d = network.shape.width
    for m, (seed, norm_bias) in enumerate(zip(seeds, norm_biases, strict=True)):
        generator = torch.Generator().manual_seed(seed)
        bounds = [
            (getattr(network, name), 1 / math.sqrt(d)) for name in ("embedding", "position") if hasattr(network, name)
        ]
        bounds += [(getattr(network.block, name), 1 / math.sqrt(d * times)) for name, times in fan_in.items()]
        for parameter, bound in bounds:
            fresh = torch.rand(parameter[m].shape, generator=generator) * 2 - 1
            parameter[m].copy_(fresh * bound)
        for bias in (network.block.norm1_bias, network.block.norm2_bias, network.norm_bias):
            bias[m].fill_(norm_bias)
