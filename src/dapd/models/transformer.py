"""The bidirectional network that LLaDA and Dream share: RMSNorm, rotary attention without a causal mask, SwiGLU.

Arithmetically LLaDA is a Llama and Dream a Qwen2 under a full mask; the differences are fields of the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dapd.errors import DapdError
from dapd.kernels.attention import KeyMask, attend, attend_with_lse
from dapd.kernels.capture import AttentionSum
from dapd.kernels.norm import Added, add_rms_norm
from dapd.kernels.rotary import rotated_heads
from dapd.kernels.swiglu import swiglu
from dapd.models.base import Capture, Prediction, Profile
from dapd.models.cache import KVCache
from dapd.models.checkpoint import Part
from dapd.models.columns import Span, as_tensor, take, width


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
    """The logits that predict column i are those of column i - lookback."""

    def __post_init__(self) -> None:
        for name in ("n_layers", "d_model", "n_heads", "n_kv_heads", "d_mlp", "vocab_size", "max_length"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise DapdError(f"{name} is {value!r}; it must be a whole number of at least 1")
        for name in ("rope_theta", "norm_eps"):
            if not isinstance(getattr(self, name), int | float) or getattr(self, name) <= 0:
                raise DapdError(f"{name} is {getattr(self, name)!r}; it must be a number above 0")
        if self.d_model % self.n_heads or self.head_dim % 2:
            raise DapdError(f"width {self.d_model} over {self.n_heads} heads must give an even whole head size")
        if self.n_heads % self.n_kv_heads:
            raise DapdError(f"{self.n_heads} heads cannot share {self.n_kv_heads} key-value heads evenly")
        self.profile.check(self.vocab_size)

    @property
    def head_dim(self) -> int:
        return self.d_model // self.n_heads

    @property
    def fused(self) -> dict[str, dict[str, int]]:
        """The projections that are one matrix here and several in a checkpoint, with the rows of each part."""
        kv = self.n_kv_heads * self.head_dim
        return {
            "qkv_proj": {"q_proj": self.d_model, "k_proj": kv, "v_proj": kv},
            "gate_up_proj": {"gate_proj": self.d_mlp, "up_proj": self.d_mlp},
        }


def unfused(config: TransformerConfig, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A network's tensors by the names of their unfused parts, as views: filling a part fills the network.

    With tensor parallelism a fused tensor holds an equal share of each of its parts.
    """
    parts: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        *path, module, kind = name.split(".")
        sizes = config.fused.get(module)
        if sizes is None:
            parts[name] = tensor
            continue
        rows_of = [len(tensor) * size // sum(sizes.values()) for size in sizes.values()]
        for part, rows in zip(sizes, torch.split(tensor, rows_of), strict=True):
            parts[".".join((*path, part, kind))] = rows
    return parts


@dataclass(frozen=True)
class Geometry:
    """The values that all layers of one forward pass share."""

    span: Span
    cos: Float[Tensor, "#b 1 s d"]
    sin: Float[Tensor, "#b 1 s d"]
    valid: Bool[Tensor, "b l"] | None
    mask: KeyMask | None
    """`valid` in the form in which attention takes it."""
    cache: KVCache | None
    queries: Span
    """The columns whose queries are captured."""
    keys: Span
    """The columns whose keys are captured: those to which attention is measured."""
    attention: AttentionSum
    """The sum to which every captured layer adds its attention."""


@dataclass(frozen=True)
class Turn:
    """The values of a pass that differ by layer. Layers that differ in nothing but their number share compiled code."""

    number: int
    captured: bool
    """Whether its attention is captured."""
    columns: Span
    """The columns for which it computes queries. Of those that the prediction does not need, the last layer computes
    the keys and values alone."""


class RMSNorm(nn.Module):
    """Adds the output of a sublayer to the residual stream and normalises the sum; returns both."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, h: Float[Tensor, "*b d"], residual: Float[Tensor, "*b d"]) -> Added:
        return add_rms_norm(residual, h, self.weight, self.eps)


class Embedding(nn.Embedding):
    """An embedding that is not initialised where its tensor has no memory: torch would load its compiler for that,
    which takes longer than everything else in a short command."""

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            super().reset_parameters()


class Layer(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        d = config.d_model
        kv = config.n_kv_heads * config.head_dim
        self.n_heads = config.n_heads
        self.n_kv_heads = config.n_kv_heads
        self.attn_norm = RMSNorm(d, config.norm_eps)
        self.qkv_proj = nn.Linear(d, d + 2 * kv, bias=config.qkv_bias)
        self.o_proj = nn.Linear(d, d, bias=False)
        self.mlp_norm = RMSNorm(d, config.norm_eps)
        self.gate_up_proj = nn.Linear(d, 2 * config.d_mlp, bias=False)
        self.down_proj = nn.Linear(config.d_mlp, d, bias=False)

    def forward(
        self, h: Float[Tensor, "b s e"], residual: Float[Tensor, "b s e"], geometry: Geometry, turn: Turn
    ) -> tuple[Float[Tensor, "b r e"], Float[Tensor, "b r e"]]:
        """The output of the previous layer, not yet added, and the residual stream -> the same after this layer."""
        residual, h = self.attn_norm(h, residual)
        h = self.attend(h, geometry, turn)
        residual, h = self.mlp_norm(h, take(residual, turn.columns, of=geometry.span))
        return self.down_proj(swiglu(self.gate_up_proj(h))), residual

    def attend(self, h: Float[Tensor, "b s e"], g: Geometry, turn: Turn) -> Float[Tensor, "b r e"]:
        q, kv = rotated_heads(self.qkv_proj(h), (self.n_heads, self.n_kv_heads), g.cos, g.sin)
        if g.cache is not None:
            kv = g.cache.update(turn.number, kv, g.span)
        k, v = kv[:, : self.n_kv_heads], kv[:, self.n_kv_heads :]
        q = take(q, turn.columns, 2, of=g.span)
        if not turn.captured:
            out = attend(q, k, v, g.mask)
        else:
            out, lse = attend_with_lse(q, k, v, g.mask)
            g.attention.add(
                take(q, g.queries, 2, of=turn.columns),
                take(k, g.keys, 2),
                take(lse, g.queries, 2, of=turn.columns),
                None if g.valid is None else take(g.valid, g.keys),
            )
        mixed: Tensor = self.o_proj(out.transpose(1, 2).flatten(2))
        return mixed


class Transformer(nn.Module):
    """A masked language model as the engine sees it: see `MaskedLM`."""

    graphable = True
    """A pass reads no tensor on the host: it can be recorded as a CUDA graph."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = Embedding(config.vocab_size, config.d_model)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.n_layers))
        self.norm = RMSNorm(config.d_model, config.norm_eps)
        self.head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tied:
            self.head.weight = self.embed.weight

    @property
    def profile(self) -> Profile:
        return self.config.profile

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

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

    @property
    def part(self) -> Part | None:
        """The part of its tensors that this process holds; None: all of them, whole."""
        return None

    def held(self, *, tied_twice: bool = False) -> dict[str, Tensor]:
        """This process's parameters by the names of their unfused parts; `tied_twice` also lists a tied head."""
        return unfused(self.config, dict(self.named_parameters(remove_duplicate=not tied_twice)))

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        span: Span,
        window: Span,
        *,
        valid: Bool[Tensor, "batch length"] | None = None,
        cache: KVCache | None = None,
        capture: Capture | None = None,
    ) -> Prediction:
        """Compute the columns `span` (the others come from `cache`) and predict the columns `window`."""
        predictors = self._predictors(tokens, span, window, valid)
        needed = self._needed(window, predictors)
        needed = needed if width(needed) < width(span) else span
        cos, sin = self._rotary(span, valid)
        by_predictor = capture is not None and capture.rows == "predictor"
        whole_canvas = capture is not None and capture.keys == "canvas"
        geometry = Geometry(
            span=span,
            cos=cos,
            sin=sin,
            valid=valid,
            mask=None if valid is None else KeyMask(valid, self.dtype),
            cache=cache,
            queries=predictors if by_predictor else window,
            keys=slice(0, tokens.shape[1]) if whole_canvas else window,
            attention=AttentionSum(),
        )
        h = self.embed(take(tokens, span))
        residual = torch.zeros_like(h, requires_grad=h.requires_grad)  # in training, too, layers share code
        for number, layer in enumerate(self.layers):
            captured = capture is not None and number in capture.layers
            columns = needed if number == self.n_layers - 1 else span
            h, residual = layer(h, residual, geometry, Turn(number, captured, columns))
        h = self.norm(h, residual).normed
        # The head costs as much as several layers: it sees the computed columns, or the window where that has fewer.
        few = h.shape[1] < width(window)
        logits = take(self.head(h), predictors, of=needed) if few else self.head(take(h, predictors, of=needed))
        return Prediction(logits, geometry.attention.mean())

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
        self, tokens: Int[Tensor, "b l"], span: Span, window: Span, valid: Bool[Tensor, "b l"] | None
    ) -> Span:
        """The columns that predict the window; a row's first column, with nothing to its left, predicts itself.

        So does the first column of a span that begins with the window: its predictor was not computed.
        """
        if self.lookback == 0:
            return window
        begin = span.start if isinstance(span, slice) else 0
        if isinstance(window, slice):
            if valid is None and window.start - self.lookback >= begin:
                return slice(window.start - self.lookback, window.stop - self.lookback)
            window = as_tensor(window, tokens)
        shifted = (window - self.lookback).clamp_min(begin)
        return shifted if valid is None else shifted.maximum(valid.int().argmax(-1, keepdim=True))

    def _needed(self, window: Span, predictors: Span) -> Span:
        """The columns of the window and those that predict it, without gaps."""
        if isinstance(predictors, slice):
            assert isinstance(window, slice)
            return slice(predictors.start, window.stop)
        if isinstance(window, slice):
            window = as_tensor(window, predictors)
        return window if predictors is window else torch.cat((predictors[:, : self.lookback], window), 1)
