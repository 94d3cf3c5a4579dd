"""Attention without a causal mask; where it is asked for, also the logarithm of each row's softmax denominator.

The operators that return it are private ones of torch, so they are named in this module only.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.attention import SDPBackend

ELEMENTS = 1 << 26
"""The torch versions hold at most about this many scores (256 MB in fp32) at a time, or those of one
key-value head if they are more."""

aten = torch.ops.aten


class Attended(NamedTuple):
    out: Float[Tensor, "b h s d"]
    lse: Float[Tensor, "b h s"]
    """log sum exp of each row's scaled scores, in fp32 or wider."""


class KeyMask:
    """Which keys may be seen: all but the padding on the left of each row."""

    def __init__(self, valid: Bool[Tensor, "b l"], dtype: torch.dtype) -> None:
        batch, length = valid.shape
        # Aligned in memory, so that no layer has to copy it.
        aligned = torch.zeros((batch, 1, 1, -(-length // 16) * 16), dtype=dtype, device=valid.device)
        self.bias: Float[Tensor, "b 1 1 l"] = aligned[..., :length].masked_fill_(~valid[:, None, None, :], -torch.inf)
        """0 where a key may be seen, -inf elsewhere."""
        padding = (~valid).sum().int()
        self.key_ends = torch.stack((padding * 0, padding, padding * 0 + length))
        """For a single row, where its two sequences end (padding, keys): 0, end of the padding, end of the keys."""
        self._query_ends: dict[int, Tensor] = {}

    def query_ends(self, n: int) -> Int[Tensor, " 3"]:
        """The same for the row's `n` queries, none of which belongs to the padding: 0, 0, n."""
        if n not in self._query_ends:
            self._query_ends[n] = F.pad(torch.full_like(self.key_ends[:1], n), (2, 0))
        return self._query_ends[n]


def attend(
    q: Float[Tensor, "b h s d"], k: Float[Tensor, "b g l d"], v: Float[Tensor, "b g l d"], mask: KeyMask | None
) -> Float[Tensor, "b h s d"]:
    """softmax(q k^T / sqrt(d)) v, over the keys that may be seen."""
    if mask is not None and len(q) == 1 and _flash(q):
        return _attend_behind_padding(q, k, v, mask).out
    bias = None if mask is None else mask.bias
    if q.is_cuda and (bias is not None or not _flash(q)):
        # Without flash attention torch has only its plain version for shared heads, which holds all scores in memory.
        k, v = _repeated(k, q.shape[1]), _repeated(v, q.shape[1])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, enable_gqa=q.shape[1] != k.shape[1])


def attend_with_lse(
    q: Float[Tensor, "b h s d"], k: Float[Tensor, "b g l d"], v: Float[Tensor, "b g l d"], mask: KeyMask | None
) -> Attended:
    """As `attend`, with the logarithm of the softmax's denominator."""
    bias = None if mask is None else mask.bias
    if q.device.type == "cpu":
        return Attended(*aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=bias))
    if mask is not None and len(q) == 1 and _flash(q):
        return _attend_behind_padding(q, k, v, mask)
    if bias is not None:
        k, v = _repeated(k, q.shape[1]), _repeated(v, q.shape[1])
    if _cudnn(q, k, v, bias):
        out, lse = aten._scaled_dot_product_cudnn_attention(q, k, v, bias, True)[:2]
        return Attended(out, lse[..., 0] if lse.ndim == 4 else lse)
    if bias is None and _flash(q):
        # Heads may be shared as they are.
        return Attended(*aten._scaled_dot_product_flash_attention(q, k, v)[:2])
    if q.is_cuda and q.dtype != torch.float64 and q.shape[-1] % 8 == 0:
        k, v = _repeated(k, q.shape[1]), _repeated(v, q.shape[1])
        wide = None if bias is None else bias.expand(-1, q.shape[1], q.shape[2], -1)
        out, lse = aten._scaled_dot_product_efficient_attention(q, k, v, wide, True)[:2]
        return Attended(out, lse[..., : q.shape[2]])  # its rows are padded to a multiple of 32
    return Attended(attend(q, k, v, mask), log_denominator(q, k, bias))


def _attend_behind_padding(
    q: Float[Tensor, "b h s d"], k: Float[Tensor, "b g l d"], v: Float[Tensor, "b g l d"], mask: KeyMask
) -> Attended:
    """Attention of a single row, by flash attention for sequences of unequal length.

    The padding is a sequence of its own without queries. Other kernels would take a bias, but cuDNN makes a
    new plan for every length, which takes longer than ten passes of a large model.
    """
    n, length = q.shape[2], k.shape[2]
    if n == 1:
        # A single query with shared heads is rearranged by flash attention, which then miscounts the sequences.
        k, v = _repeated(k, q.shape[1]), _repeated(v, q.shape[1])
    flat = [part[0].transpose(0, 1) for part in (q, k, v)]
    ends = (mask.query_ends(n), mask.key_ends)
    out, lse = aten._flash_attention_forward(*flat, *ends, n, length, 0.0, False, False)[:2]
    return Attended(out.transpose(0, 1)[None], lse[None])


def log_denominator(
    q: Float[Tensor, "b h s d"], k: Float[Tensor, "b g l d"], bias: Float[Tensor, "b 1 1 l"] | None
) -> Float[Tensor, "b h s"]:
    """log sum exp of the scores, computed from the scores: slow, and right on any device."""
    shared = q.shape[1] // k.shape[1]
    step = max(1, ELEMENTS // (q.shape[0] * shared * q.shape[2] * k.shape[2]))
    parts = []
    for first in range(0, k.shape[1], step):
        some = scores(q[:, first * shared : (first + step) * shared], k[:, first : first + step])
        parts.append((some if bias is None else some + bias).logsumexp(-1))
    return torch.cat(parts, 1)


def scores(q: Float[Tensor, "b h s d"], k: Float[Tensor, "b g l d"]) -> Float[Tensor, "b h s l"]:
    """q k^T / sqrt(d) in fp32 or wider."""
    wide = torch.promote_types(q.dtype, torch.float32)
    (batch, heads, rows, size), groups = q.shape, k.shape[1]
    grouped = q.to(wide).reshape(batch, groups, heads // groups, rows, size)
    scaled: Tensor = grouped @ k.to(wide)[:, :, None].mT * size**-0.5
    return scaled.flatten(1, 2)


def _flash(q: Tensor) -> bool:
    """Whether torch has flash attention for these queries: it needs half precision and a GPU of Ampere or later."""
    half = q.dtype in (torch.bfloat16, torch.float16)
    fits = q.is_cuda and half and q.shape[-1] % 8 == 0 and q.shape[-1] <= 256
    return fits and torch.cuda.get_device_capability(q.device) >= (8, 0)


def _cudnn(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> bool:
    """Whether torch would choose cuDNN, as it does on Hopper, where cuDNN is faster than flash attention.

    With padding it is nearly three times as fast as the memory-efficient version, the only other one that returns the
    denominator then.
    """
    if not _flash(q):
        return False
    choice = torch._fused_sdp_choice(q, k, v, attn_mask=bias, enable_gqa=q.shape[1] != k.shape[1])
    return choice == SDPBackend.CUDNN_ATTENTION.value


def _repeated(heads: Tensor, n: int) -> Tensor:
    return heads if heads.shape[1] == n else heads.repeat_interleave(n // heads.shape[1], 1)
