"""DAPD as a first implementation would do it: correct, plain and slow. The baseline, and a second opinion.

Whole attention matrices are kept in the layers that the graph is read from; logits and an fp32 softmax are made for all
columns of the canvas; the greedy scan runs in Python and reads the device once for every number it looks at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dapd.bench.pace import Pace, paced
from dapd.canvas import Canvas
from dapd.errors import DapdError
from dapd.models import Transformer
from dapd.strategies import Dapd

Angles = tuple[Float[Tensor, "l d"], Float[Tensor, "l d"]]
"""cos and sin of every column's rotation."""

Scan = Literal["taken", "pairs"]
"""taken: compare a candidate with those taken before it; pairs: list the neighbours of every node first."""


def naive_decode(
    model: Transformer, canvases: Sequence[Canvas], strategy: Dapd, *, scan: Scan = "taken", pace: Pace | None = None
) -> Iterator[list[Canvas]]:
    """Fill every mask in one block, as many positions a step as the pace says: the canvases after each step."""
    _check(canvases, strategy)
    index = 0
    total = int(canvases[0].masked.sum())
    while any(bool(canvas.masked.any()) for canvas in canvases):
        with torch.no_grad():
            tokens = torch.stack([canvas.tokens for canvas in canvases]).to(model.device)
            logits, attention = forward(model, tokens, strategy)
            logits[..., model.profile.mask_id] = torch.finfo(logits.dtype).min
            confidence, token = logits.float().softmax(-1).max(-1)
            after = []
            for row, canvas in enumerate(canvases):
                window = slice(canvas.start, canvas.length)
                commit = select(attention[row], confidence[row], canvas, strategy, scan)
                if pace is not None:
                    count = pace.count(index, total)
                    masked = canvas.masked.to(model.device)[None, window]
                    commit = paced(commit[None], confidence[row][None, window], masked, count)[0]
                after.append(canvas.commit(window, commit.cpu(), token[row, window].cpu()))
            canvases = after
        index += 1
        yield after


def _check(canvases: Sequence[Canvas], strategy: Dapd) -> None:
    plain = Dapd()
    for name in ("late_rule", "edge_norm", "direction", "order", "rows"):
        if getattr(strategy, name) != getattr(plain, name):
            raise DapdError(f"the naive path supports {name}={getattr(plain, name)} only")
    if len({(canvas.length, canvas.start) for canvas in canvases}) > 1:
        raise DapdError("the naive path needs prompts of equal length")


def forward(
    model: Transformer, tokens: Int[Tensor, "b l"], strategy: Dapd
) -> tuple[Float[Tensor, "b l v"], Float[Tensor, "b l l"]]:
    """Logits for every column, and attention averaged over heads and over the layers that the strategy reads."""
    need = strategy.needs.attention
    assert need is not None
    eager = need.resolve(model.n_layers)
    kept: list[Tensor] = []
    x = model.embed(tokens)
    cos, sin = rotary(model, tokens.shape[1])
    layers: Any = model.layers
    for index, layer in enumerate(layers):
        x = x + attend(layer, normed(layer.attn_norm, x), (cos, sin), model, kept if index in eager else None)
        x = x + mlp(layer, normed(layer.mlp_norm, x))
    logits = model.head(normed(model.norm, x))
    if model.lookback:
        logits = torch.cat((logits[:, :1], logits[:, :-1]), 1)
    return logits, torch.stack([weights.float().mean(1) for weights in kept]).mean(0)


def attend(
    layer: Any,
    h: Float[Tensor, "b l e"],
    angles: tuple[Tensor, Tensor],
    model: Transformer,
    kept: list[Tensor] | None,
) -> Float[Tensor, "b l e"]:
    """Attention: torch's function where the weights are not needed, spelt out where `kept` collects them."""
    config = model.config
    kv = config.n_kv_heads * config.head_dim
    parts = projected(layer.qkv_proj, (config.d_model, kv, kv), h)
    q, k, v = (part.reshape(*part.shape[:2], -1, config.head_dim).transpose(1, 2) for part in parts)
    q, k = rotated(q, *angles), rotated(k, *angles)
    k, v = (part.repeat_interleave(config.n_heads // config.n_kv_heads, 1) for part in (k, v))
    if kept is None:
        out = F.scaled_dot_product_attention(q, k, v)
    else:
        weights = (q @ k.mT / math.sqrt(config.head_dim)).softmax(-1, dtype=torch.float32)
        kept.append(weights)
        out = weights.to(v.dtype) @ v
    mixed: Tensor = layer.o_proj(out.transpose(1, 2).flatten(2))
    return mixed


def mlp(layer: Any, h: Float[Tensor, "b l e"]) -> Float[Tensor, "b l e"]:
    width = layer.down_proj.in_features
    gate, up = projected(layer.gate_up_proj, (width, width), h)
    down: Tensor = layer.down_proj(F.silu(gate) * up)
    return down


def projected(packed: Any, sizes: tuple[int, ...], h: Float[Tensor, "b l e"]) -> list[Tensor]:
    """One product for each of the projections that the model keeps packed along the output."""
    biases = [None] * len(sizes) if packed.bias is None else list(packed.bias.split(sizes))
    return [F.linear(h, weight, bias) for weight, bias in zip(packed.weight.split(sizes), biases, strict=True)]


def normed(norm: Any, x: Float[Tensor, "b l e"]) -> Float[Tensor, "b l e"]:
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + norm.eps)
    out: Tensor = norm.weight * (wide * scale).to(x.dtype)
    return out


def rotary(model: Transformer, length: int) -> Angles:
    config = model.config
    device = model.device
    exponent = torch.arange(0, config.head_dim, 2, device=device, dtype=torch.float32) / config.head_dim
    angle = torch.arange(length, device=device).float()[:, None] / config.rope_theta**exponent
    angle = torch.cat((angle, angle), -1)
    dtype = torch.float32 if config.rope_fp32 else model.dtype
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotated(x: Float[Tensor, "b h l d"], cos: Float[Tensor, "l d"], sin: Float[Tensor, "l d"]) -> Tensor:
    wide = x.to(cos.dtype)
    left, right = wide.chunk(2, -1)
    return (wide * cos + torch.cat((-right, left), -1) * sin).to(x.dtype)


def select(
    attention: Float[Tensor, "l l"],
    confidence: Float[Tensor, " l"],
    canvas: Canvas,
    strategy: Dapd,
    scan: Scan,
) -> Bool[Tensor, " n"]:
    """The positions that one row commits: the greedy set and the positions of the shortcut.

    Those of the shortcut "direct" take no part in the scan.
    """
    nodes = canvas.masked.nonzero().flatten().to(attention.device)
    commit = torch.zeros(canvas.length, dtype=torch.bool, device=attention.device)
    if not len(nodes):
        return commit[canvas.start :]
    unmasked = 1 - len(nodes) / int(canvas.slots.sum())
    tau = strategy.tau_min + (strategy.tau_max - strategy.tau_min) * unmasked
    between = attention[nodes][:, nodes]
    scores = ((between + between.mT) / 2).fill_diagonal_(0)
    sure = confidence[nodes]
    free: list[int] = []
    if strategy.shortcut == "direct":
        free = [i for i in range(len(nodes)) if sure[i].item() >= strategy.certain]
    elif strategy.shortcut == "staged" and unmasked >= strategy.switch_at:
        free = [i for i in range(len(nodes)) if sure[i].item() >= strategy.confident]
    order = (scores.sum(-1) * sure).argsort(descending=True, stable=True).tolist()
    candidates = [i for i in order if strategy.shortcut != "direct" or i not in free]
    ratio = scores / scores.amax(-1, keepdim=True).clamp_min(1e-8)
    taken = SCANS[scan](ratio, tau, candidates)
    commit[nodes[[*taken, *free]]] = True
    return commit[canvas.start :]


def scan_taken(ratio: Float[Tensor, "m m"], tau: float, order: list[int]) -> list[int]:
    """Node after node, each compared with those taken before it until there is an edge to one."""
    taken: list[int] = []
    for i in order:
        if not any(ratio[i, j].item() > tau for j in taken):
            taken.append(i)
    return taken


def scan_pairs(ratio: Float[Tensor, "m m"], tau: float, order: list[int]) -> list[int]:
    """The graph first, as lists of neighbours from every pair in turn, then the greedy scan over it."""
    keeps_out: dict[int, list[int]] = {i: [] for i in order}
    for place, i in enumerate(order):
        for j in order[:place]:
            if ratio[i, j].item() > tau:
                keeps_out[i].append(j)
    taken: set[int] = set()
    for i in order:
        if not taken.intersection(keeps_out[i]):
            taken.add(i)
    return list(taken)


SCANS = {"taken": scan_taken, "pairs": scan_pairs}
