"""Rotary embedding of queries and keys, straight out of the packed projection."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from dapd.kernels import FLOATS, head_size_fits, usable


class Heads(NamedTuple):
    """The query heads, and the key heads followed by the value heads; the kernel gives strided views, not copies."""

    q: Float[Tensor, "b h s d"]
    kv: Float[Tensor, "b g s d"]


def rotate(x: Float[Tensor, "b h s d"], cos: Float[Tensor, ...], sin: Float[Tensor, ...]) -> Float[Tensor, "b h s d"]:
    """Rotary embedding, half-split, in the dtype of the tables."""
    left, right = x.to(cos.dtype).chunk(2, dim=-1)
    return (torch.cat((left, right), -1) * cos + torch.cat((-right, left), -1) * sin).to(x.dtype)


def rotated_heads(
    packed: Float[Tensor, "b s p"],
    counts: tuple[int, int],
    cos: Float[Tensor, "#b 1 s d"],
    sin: Float[Tensor, "#b 1 s d"],
) -> Heads:
    """The heads of a packed q, k, v projection, q and k rotated; `counts` are the query and the key-value heads.

    The kernel rotates in place, so `packed` must not be used afterwards.
    """
    n_q, n_kv = counts
    heads = packed.view(*packed.shape[:2], n_q + 2 * n_kv, cos.shape[-1]).transpose(1, 2)
    if _fits(packed, cos, sin):
        from dapd.kernels.jit.rotary import rotate_in_place

        rotate_in_place(packed, n_q + n_kv, cos, sin)
        return Heads(heads[:, :n_q], heads[:, n_q:])
    rotated = rotate(heads[:, : n_q + n_kv], cos, sin)
    return Heads(rotated[:, :n_q], torch.cat((rotated[:, n_q:], heads[:, n_q + n_kv :]), 1))


def _fits(packed: Tensor, cos: Tensor, sin: Tensor) -> bool:
    floats = usable(packed, cos, sin) and packed.dtype in FLOATS and packed.is_contiguous()
    return floats and head_size_fits(cos.shape[-1])
