"""The forward pass of LLaDA and Dream for one sequence, head by head, with keys and values kept by hand.

Keys are kept as upstream's dual cache keeps them: before the rotation, which is applied anew in every pass.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dapd.models import Transformer
from helpers_models import parts


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """In fp32 whatever the model's dtype, then cast back, then scaled."""
    wide = x.float()
    return (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


def rotate(x: Tensor, positions: list[int], theta: float) -> Tensor:
    """Dimension i of a head turns together with dimension i + d/2; the angles are fp32, as in the checkpoints' code."""
    half = x.shape[-1] // 2
    speed = 1.0 / theta ** (torch.arange(0, 2 * half, 2, dtype=torch.float32) / (2 * half))
    angle = torch.tensor(positions, dtype=torch.float32)[:, None] * speed
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[:, :half], x[:, half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Sequence:
    """One sequence in front of a network: passes over some of its columns, the other columns' keys and values kept."""

    def __init__(self, network: Transformer) -> None:
        self.config = network.config
        self.weights = {name: value.detach() for name, value in parts(network).items()}
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}
        self.attention: list[Tensor] = []
        """Of the last pass, per layer: the mean over heads, [columns fed, all columns]."""

    def run(self, tokens: list[int], fed: range | None = None) -> Tensor:
        """Feed the columns `fed` (None: all of them) and get their logits, row by row, without any shift."""
        fed = range(len(tokens)) if fed is None else fed
        w, c = self.weights, self.config
        x = w["embed.weight"][[tokens[i] for i in fed]]
        self.attention = []
        for layer in range(c.n_layers):
            name = f"layers.{layer}."
            x = x + self._attend(rms(x, w[name + "attn_norm.weight"], c.norm_eps), layer, fed, len(tokens))
            h = rms(x, w[name + "mlp_norm.weight"], c.norm_eps)
            gate, up = h @ w[name + "gate_proj.weight"].T, h @ w[name + "up_proj.weight"].T
            x = x + (gate * torch.sigmoid(gate) * up) @ w[name + "down_proj.weight"].T
        return rms(x, w["norm.weight"], c.norm_eps) @ w["head.weight"].T

    def _project(self, h: Tensor, name: str) -> Tensor:
        out = h @ self.weights[name + ".weight"].T
        return out + self.weights[name + ".bias"] if name + ".bias" in self.weights else out

    def _attend(self, h: Tensor, layer: int, fed: range, length: int) -> Tensor:
        c, d, name = self.config, self.config.head_dim, f"layers.{layer}."
        q, k, v = (self._project(h, name + part) for part in ("q_proj", "k_proj", "v_proj"))
        if len(fed) == length:
            keys, values = k, v
        else:
            keys, values = (old.clone() for old in self.kept[layer])
            keys[fed.start : fed.stop], values[fed.start : fed.stop] = k, v
        self.kept[layer] = (keys, values)
        everywhere, heads, maps = list(range(length)), [], []
        for head in range(c.n_heads):
            own, shared = slice(head * d, (head + 1) * d), head // (c.n_heads // c.n_kv_heads)
            shared = slice(shared * d, (shared + 1) * d)
            scores = rotate(q[:, own], list(fed), c.rope_theta) @ rotate(keys[:, shared], everywhere, c.rope_theta).T
            weight = torch.softmax(scores / d**0.5, -1)
            heads.append(weight @ values[:, shared])
            maps.append(weight)
        self.attention.append(torch.stack(maps).mean(0))
        return torch.cat(heads, -1) @ self.weights[name + "o_proj.weight"].T


def shifted(logits: Tensor) -> Tensor:
    """Dream's alignment: row i is the model's row i - 1, and row 0 stands twice."""
    return torch.cat((logits[:1], logits[:-1]))


def predictions(sequence: Sequence, tokens: list[int], fed: range | None = None) -> dict[int, Tensor]:
    """One pass: for every column fed the row that predicts it. In a partial pass the shift is the part's own."""
    logits = sequence.run(tokens, fed)
    logits = shifted(logits) if sequence.config.lookback else logits
    return dict(zip(range(len(tokens)) if fed is None else fed, logits, strict=True))


def columns(reuse: str, first: int, stop: int, length: int, *, fresh: bool) -> range:
    """Which columns a pass feeds: all of them at the start of a block, then what the cache does not hold."""
    if fresh or reuse == "none":
        return range(length)
    return range(first, length) if reuse == "prefix" else range(first, stop)
