"""The bidirectional body that LLaDA and Dream share: RMSNorm, rotary attention without a causal mask, SwiGLU.

Arithmetically LLaDA is a Llama and Dream a Qwen2 under a full mask; the differences are fields of the configuration.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dapd.errors import DapdError
from dapd.models.base import Capture, Prediction, Profile
from dapd.models.cache import KVCache
from dapd.models.columns import Span, rows_of, take

CAPTURE_ELEMENTS = 1 << 26
"""Attention capture holds at most about this many softmax entries (256 MB in fp32) at a time, or one head's."""


@dataclass(frozen=True)
class TransformerConfig:
    """The shape of a model, its quirks and its special ids."""

    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    d_mlp: int
    vocab_size: int
    profile: Profile
    max_length: int = 4096
    """Longest canvas: prompt and new tokens."""
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    qkv_bias: bool = False
    tied: bool = False
    """Whether the head is the embedding."""
    rope_fp32: bool = True
    """Rotate in fp32 (LLaDA) or in the model's dtype (Dream)."""
    lookback: int = 0
    """The logits that predict column i are those of row i - lookback."""

    def __post_init__(self) -> None:
        for name in ("n_layers", "d_model", "n_heads", "n_kv_heads", "d_mlp", "vocab_size", "max_length"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise DapdError(f"{name} is {value!r}; it must be a whole number of at least 1")
        for name in ("rope_theta", "norm_eps"):
            if not isinstance(getattr(self, name), int | float) or getattr(self, name) <= 0:
                raise DapdError(f"{name} is {getattr(self, name)!r}; it must be a number above 0")
        if self.d_model % self.n_heads or self.head_dim % 2:
            raise DapdError(f"d_model {self.d_model} over {self.n_heads} heads must give an even whole head size")
        if self.n_heads % self.n_kv_heads:
            raise DapdError(f"{self.n_heads} heads cannot share {self.n_kv_heads} key-value heads evenly")
        self.profile.check(self.vocab_size)

    @property
    def head_dim(self) -> int:
        return self.d_model // self.n_heads


@dataclass(frozen=True)
class Geometry:
    """What every layer of one forward pass has in common."""

    span: Span
    length: int
    cos: Float[Tensor, "b 1 s d"]
    sin: Float[Tensor, "b 1 s d"]
    valid: Bool[Tensor, "b l"] | None
    cache: KVCache | None
    capture: Capture | None


class RMSNorm(nn.Module):
    """Normalise in fp32, cast back, then scale: the order of casts is the checkpoints' own."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype)


def rotate(x: Float[Tensor, "b h s d"], cos: Float[Tensor, ...], sin: Float[Tensor, ...]) -> Float[Tensor, "b h s d"]:
    """Rotary embedding, half-split, in the dtype of the tables."""
    left, right = x.to(cos.dtype).chunk(2, dim=-1)
    return (torch.cat((left, right), -1) * cos + torch.cat((-right, left), -1) * sin).to(x.dtype)


def head_mean_attention(
    q: Float[Tensor, "b h n d"], k: Float[Tensor, "b g l d"], valid: Bool[Tensor, "b l"] | None, keys: slice
) -> Float[Tensor, "b n k"]:
    """Mean over heads of softmax(q k^T / sqrt(d)) over all valid keys, in fp32, for the columns `keys` alone."""
    b, h, n, d = q.shape
    groups, length = k.shape[1], k.shape[2]
    q = q.reshape(b, groups, h // groups, n, d)
    step = max(1, CAPTURE_ELEMENTS // (b * (h // groups) * n * length))
    total = q.new_zeros((b, n, len(range(length)[keys])), dtype=torch.float32)
    for first in range(0, groups, step):
        part = slice(first, first + step)
        scores = q[:, part].float() @ k[:, part, None].float().mT * d**-0.5
        if valid is not None:
            scores = scores.masked_fill(~valid[:, None, None, None, :], -torch.inf)
        total = total + scores.softmax(-1)[..., keys].sum((1, 2))
    return total / h


class Layer(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        d, kv = config.d_model, config.n_kv_heads * config.head_dim
        self.head_dim = config.head_dim
        self.attn_norm = RMSNorm(d, config.norm_eps)
        self.q_proj = nn.Linear(d, d, bias=config.qkv_bias)
        self.k_proj = nn.Linear(d, kv, bias=config.qkv_bias)
        self.v_proj = nn.Linear(d, kv, bias=config.qkv_bias)
        self.o_proj = nn.Linear(d, d, bias=False)
        self.mlp_norm = RMSNorm(d, config.norm_eps)
        self.gate_proj = nn.Linear(d, config.d_mlp, bias=False)
        self.up_proj = nn.Linear(d, config.d_mlp, bias=False)
        self.down_proj = nn.Linear(config.d_mlp, d, bias=False)

    def forward(
        self, x: Float[Tensor, "b s e"], index: int, geometry: Geometry
    ) -> tuple[Float[Tensor, "b s e"], Float[Tensor, "b n k"] | None]:
        mixed, attention = self.attend(self.attn_norm(x), index, geometry)
        x = x + mixed
        h = self.mlp_norm(x)
        return x + self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h)), attention

    def attend(
        self, h: Float[Tensor, "b s e"], index: int, g: Geometry
    ) -> tuple[Float[Tensor, "b s e"], Float[Tensor, "b n k"] | None]:
        q, k, v = (
            proj(h).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(q, g.cos, g.sin), rotate(k, g.cos, g.sin)
        if g.cache is not None:
            k, v = g.cache.update(index, g.span, k, v, g.length)
        allowed = None if g.valid is None else g.valid[:, None, None, :]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, enable_gqa=q.shape[1] != k.shape[1])
        attention = None
        if g.capture is not None and index in g.capture.layers:
            rows = rows_of(q, g.span, g.capture.queries, g.length)
            attention = head_mean_attention(rows, k, g.valid, g.capture.keys)
        return self.o_proj(out.transpose(1, 2).flatten(2)), attention


class Transformer(nn.Module):
    """A masked language model as the engine sees it: see `MaskedLM`."""

    graphable = True
    """A pass reads no tensor on the host: it can be recorded as a CUDA graph."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.d_model)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.n_layers))
        self.norm = RMSNorm(config.d_model, config.norm_eps)
        self.head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tied:
            self.head.weight = self.embed.weight

    @property
    def profile(self) -> Profile:
        return self.config.profile

    @property
    def n_layers(self) -> int:
        return self.config.n_layers

    @property
    def max_length(self) -> int:
        return self.config.max_length

    @property
    def lookback(self) -> int:
        return self.config.lookback

    @property
    def device(self) -> torch.device:
        return self.embed.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.weight.dtype

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        span: Span,
        window: slice,
        *,
        valid: Bool[Tensor, "batch length"] | None = None,
        cache: KVCache | None = None,
        capture: Capture | None = None,
    ) -> Prediction:
        """Recompute the columns `span` (the others come from `cache`) and predict the columns `window`."""
        cos, sin = self._rotary(span, valid)
        geometry = Geometry(span, tokens.shape[1], cos, sin, valid, cache, capture)
        x = self.embed(take(tokens, span))
        total: Tensor | None = None
        for index, layer in enumerate(self.layers):
            x, attention = layer(x, index, geometry)
            if attention is not None:
                total = attention if total is None else total + attention
        if isinstance(span, Tensor):
            x = rows_of(x[:, None], span, slice(0, tokens.shape[1]), tokens.shape[1])[:, 0]
            span = slice(0, tokens.shape[1])
        logits = self.head(self.norm(self._predictors(x, span, window, valid)))
        mean = None if total is None or capture is None else total / len(capture.layers)
        return Prediction(logits, mean)

    def _rotary(
        self, span: Span, valid: Bool[Tensor, "b l"] | None
    ) -> tuple[Float[Tensor, "b 1 s d"], Float[Tensor, "b 1 s d"]]:
        """cos and sin of each column's position in its own row: a row means the same alone and in a padded batch."""
        if valid is not None:
            position = take((valid.cumsum(-1) - 1).clamp_min(0), span)
        elif isinstance(span, slice):
            position = torch.arange(span.start, span.stop, device=self.device)[None]
        else:
            position = span
        d = self.config.head_dim
        frequency = 1.0 / self.config.rope_theta ** (torch.arange(0, d, 2, device=self.device, dtype=torch.float32) / d)
        angle = position[:, None, :, None].float() * frequency
        angle = torch.cat((angle, angle), -1)
        dtype = torch.float32 if self.config.rope_fp32 else self.dtype
        return angle.cos().to(dtype), angle.sin().to(dtype)

    def _predictors(
        self, x: Float[Tensor, "b s e"], span: slice, window: slice, valid: Bool[Tensor, "b l"] | None
    ) -> Float[Tensor, "b n e"]:
        """The rows whose logits predict the window; a row's first column, with nothing to its left, predicts itself."""
        if self.lookback == 0:
            return x[:, window.start - span.start : window.stop - span.start]
        column = torch.arange(window.start, window.stop, device=x.device) - self.lookback - span.start
        if valid is None:
            return x[:, column.clamp_min(0)]
        # A shorter row may have nothing but padding here, and then nothing to predict either.
        first = (valid.int().argmax(-1) - span.start).clamp(0, x.shape[1] - 1)
        row = torch.maximum(column[None], first[:, None])
        return x.gather(1, row[..., None].expand(-1, -1, x.shape[-1]))
