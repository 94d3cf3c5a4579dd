"""The bidirectional body that LLaDA and Dream share: RMSNorm, rotary attention without a causal mask, SwiGLU.

Arithmetically LLaDA is a Llama and Dream a Qwen2 under a full mask; the differences are fields of the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from dapd.errors import DapdError
from dapd.kernels.attention import attend, attend_with_lse, key_bias
from dapd.kernels.capture import AttentionSum
from dapd.kernels.norm import Added, add_rms_norm, rms_norm
from dapd.kernels.rotary import Kept, rotated_heads
from dapd.kernels.swiglu import swiglu
from dapd.models.base import Capture, Prediction, Profile
from dapd.models.cache import KVCache
from dapd.models.columns import Span, place, spread, take


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

    @property
    def fused(self) -> dict[str, dict[str, int]]:
        """The projections that are one matrix here and several in a checkpoint: the rows of each part."""
        kv = self.n_kv_heads * self.head_dim
        return {
            "qkv_proj": {"q_proj": self.d_model, "k_proj": kv, "v_proj": kv},
            "gate_up_proj": {"gate_proj": self.d_mlp, "up_proj": self.d_mlp},
        }


def unfused(config: TransformerConfig, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by a network's names -> the same by the names of the parts, as views: to fill one fills the network."""
    parts: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        *path, module, kind = name.split(".")
        sizes = config.fused.get(module)
        if sizes is None:
            parts[name] = tensor
            continue
        for part, rows in zip(sizes, torch.split(tensor, list(sizes.values())), strict=True):
            parts[".".join((*path, part, kind))] = rows
    return parts


@dataclass(frozen=True)
class Geometry:
    """What every layer of one forward pass has in common."""

    span: Span
    length: int
    cos: Float[Tensor, "#b 1 s d"]
    sin: Float[Tensor, "#b 1 s d"]
    valid: Bool[Tensor, "b l"] | None
    bias: Float[Tensor, "b 1 1 l"] | None
    """`valid` as attention takes it."""
    cache: KVCache | None
    capture: Capture | None
    attention: AttentionSum
    """Where the layers of `capture` add what they see."""
    n_layers: int
    last: slice | None
    """The rows that the last layer computes, whose keys and values are all it needs of the others; None: every row."""

    def rows(self, index: int) -> slice:
        """The rows of the span that layer `index` computes."""
        return slice(None) if self.last is None or index < self.n_layers - 1 else self.last

    def columns(self, index: int) -> Span:
        """Their columns on the canvas."""
        if not isinstance(self.span, slice):
            return self.span
        columns = range(self.span.start, self.span.stop)[self.rows(index)]
        return slice(columns.start, columns.stop)

    def captured(self, index: int) -> slice:
        """The computed rows whose attention is captured; all of them where they are spread over the columns later."""
        columns = self.columns(index)
        if self.capture is None or not isinstance(columns, slice):
            return slice(None)
        return slice(self.capture.queries.start - columns.start, self.capture.queries.stop - columns.start)

    def kept(self, index: int, packed: Float[Tensor, "b s p"], n_kv: int) -> Kept | None:
        """Where layer `index` keeps its keys and values, if it does, in the projection's own dtype."""
        if self.cache is None:
            return None
        whole = isinstance(self.span, slice) and self.span.stop - self.span.start == self.length
        shape = (packed.shape[0], n_kv, self.length, self.cos.shape[-1])
        return Kept(*self.cache.room(index, shape, packed, whole=whole), self.span)


class RMSNorm(nn.Module):
    """The weight of a norm; `kernels.norm` does the work."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        return rms_norm(x, self.weight, self.eps)


class Layer(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        d, kv = config.d_model, config.n_kv_heads * config.head_dim
        self.heads = (config.n_heads, config.n_kv_heads)
        self.eps = config.norm_eps
        self.attn_norm = RMSNorm(d, config.norm_eps)
        self.qkv_proj = nn.Linear(d, d + 2 * kv, bias=config.qkv_bias)
        self.o_proj = nn.Linear(d, d, bias=False)
        self.mlp_norm = RMSNorm(d, config.norm_eps)
        self.gate_up_proj = nn.Linear(d, 2 * config.d_mlp, bias=False)
        self.down_proj = nn.Linear(config.d_mlp, d, bias=False)

    def forward(
        self,
        x: Float[Tensor, "b s e"],
        h: Float[Tensor, "b s e"],
        following: Float[Tensor, " e"],
        index: int,
        geometry: Geometry,
    ) -> Added:
        """x and its norm h -> the same for what comes next: each addition is one step with the norm that follows it."""
        mixed = self.attend(h, index, geometry)
        x, h = add_rms_norm(x[:, geometry.rows(index)], mixed, self.mlp_norm.weight, self.eps)
        return add_rms_norm(x, self.down_proj(swiglu(self.gate_up_proj(h))), following, self.eps)

    def attend(self, h: Float[Tensor, "b s e"], index: int, g: Geometry) -> Float[Tensor, "b r e"]:
        packed = self.qkv_proj(h)
        q, k, v = rotated_heads(packed, self.heads, g.cos, g.sin, g.kept(index, packed, self.heads[1]))
        q = q[:, :, g.rows(index)]
        if g.capture is not None and index in g.capture.layers:
            out, lse = attend_with_lse(q, k, v, g.bias)
            rows, keys = g.captured(index), g.capture.keys
            seen = None if g.valid is None else g.valid[:, keys]
            g.attention.add(q[:, :, rows], k[:, :, keys], lse[:, :, rows], seen)
        else:
            out = attend(q, k, v, g.bias)
        mixed: Tensor = self.o_proj(out.transpose(1, 2).flatten(2))
        return mixed


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
        bias = None if valid is None else key_bias(valid, self.dtype)
        last = self._last_rows(span, window, capture) if isinstance(span, slice) else None
        length = tokens.shape[1]
        geometry = Geometry(span, length, cos, sin, valid, bias, cache, capture, AttentionSum(), self.n_layers, last)
        x = self.embed(take(tokens, span))
        norms = [*(layer.get_parameter("attn_norm.weight") for layer in self.layers), self.norm.weight]
        h = rms_norm(x, norms[0], self.config.norm_eps)
        for index, layer in enumerate(self.layers):
            x, h = layer(x, h, norms[index + 1], index, geometry)
        computed, attention = geometry.columns(self.n_layers - 1), geometry.attention.mean()
        if isinstance(computed, slice):
            return Prediction(self.head(self._predictors(h, computed.start, window, valid)), attention)
        at = place(computed, length)
        if attention is not None and capture is not None:
            attention = spread(attention, *(part[:, capture.queries] for part in at))
        return Prediction(self._logits_of(h, at, window, valid), attention)

    def _logits_of(
        self, h: Float[Tensor, "b s e"], at: tuple[Tensor, Tensor], window: slice, valid: Tensor | None
    ) -> Float[Tensor, "b n v"]:
        """The window's logits where each row computed columns of its own; zeros for what none of them predicts."""
        slot, known = (self._predictors(part[..., None], 0, window, valid)[..., 0] for part in at)
        # The head costs as much as several layers: it sees the computed rows, or the window where that is the smaller.
        few = h.shape[1] < window.stop - window.start
        logits: Tensor = spread(self.head(h), slot, known) if few else self.head(spread(h, slot, known))
        return logits

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

    def _last_rows(self, span: slice, window: slice, capture: Capture | None) -> slice | None:
        """The rows of the span that a prediction and a capture read from the last layer; None: all of them."""
        start, stop = max(span.start, window.start - self.lookback), window.stop
        if capture is not None:
            start, stop = min(start, capture.queries.start), max(stop, capture.queries.stop)
        return None if (start, stop) == (span.start, span.stop) else slice(start - span.start, stop - span.start)

    def _predictors(
        self, x: Shaped[Tensor, "b s e"], start: int, window: slice, valid: Bool[Tensor, "b l"] | None
    ) -> Shaped[Tensor, "b n e"]:
        """The rows whose logits predict the window; a row's first column, with nothing to its left, predicts itself.

        `start` is the column of the first row.
        """
        if self.lookback == 0:
            return x[:, window.start - start : window.stop - start]
        column = torch.arange(window.start, window.stop, device=x.device) - self.lookback - start
        if valid is None:
            return x[:, column.clamp_min(0)]
        # A shorter row may have nothing but padding here, and then nothing to predict either.
        first = (valid.int().argmax(-1) - start).clamp(0, x.shape[1] - 1)
        row = torch.maximum(column[None], first[:, None])
        return x.gather(1, row[..., None].expand(-1, -1, x.shape[-1]))
