"""Rotary embedding of queries and keys, straight out of the packed projection."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dapd.kernels import FLOATS, head_size_fits, usable


class Heads(NamedTuple):
    """Queries, keys and values as attention takes them; strided views, not copies."""

    q: Float[Tensor, "b h s d"]
    k: Float[Tensor, "b g s d"]
    v: Float[Tensor, "b g s d"]


class Kept(NamedTuple):
    """The keys and values of all columns of a layer, and which of them are computed now."""

    k: Float[Tensor, "b g l d"]
    v: Float[Tensor, "b g l d"]
    columns: slice | Int[Tensor, "b s"]

    def put(self, k: Float[Tensor, "b g s d"], v: Float[Tensor, "b g s d"]) -> None:
        """Write what was computed into its columns."""
        for place, new in ((self.k, k), (self.v, v)):
            if isinstance(self.columns, slice):
                place[:, :, self.columns].copy_(new)
            else:
                place.scatter_(2, self.columns[:, None, :, None].expand(-1, new.shape[1], -1, new.shape[3]), new)


def rotate(x: Float[Tensor, "b h s d"], cos: Float[Tensor, ...], sin: Float[Tensor, ...]) -> Float[Tensor, "b h s d"]:
    """Rotary embedding, half-split, in the dtype of the tables."""
    left, right = x.to(cos.dtype).chunk(2, dim=-1)
    return (torch.cat((left, right), -1) * cos + torch.cat((-right, left), -1) * sin).to(x.dtype)


def rotated_heads(
    packed: Float[Tensor, "b s p"],
    counts: tuple[int, int],
    cos: Float[Tensor, "#b 1 s d"],
    sin: Float[Tensor, "#b 1 s d"],
    kept: Kept | None = None,
) -> Heads:
    """The heads of a packed q, k, v projection, q and k rotated; `counts` are the query and the key-value heads.

    Where keys and values are kept, they go to their columns there, and k and v are those of all columns. The kernel
    rotates in place: the projection is of no further use.
    """
    n_q, n_kv = counts
    heads = packed.view(*packed.shape[:2], n_q + 2 * n_kv, cos.shape[-1]).transpose(1, 2)
    q, k, v = heads[:, :n_q], heads[:, n_q : n_q + n_kv], heads[:, n_q + n_kv :]
    if _fits(packed, cos, sin, kept):
        from dapd.kernels.jit.rotary import rotate_in_place

        rotate_in_place(packed, counts, cos, sin, kept)
    else:
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if kept is not None:
            kept.put(k, v)
    return Heads(q, k, v) if kept is None else Heads(q, kept.k, kept.v)


def _fits(packed: Tensor, cos: Tensor, sin: Tensor, kept: Kept | None) -> bool:
    if not usable(packed, cos, sin) or packed.dtype not in FLOATS or not packed.is_contiguous():
        return False
    # The kernel walks both of them in the same steps.
    alike = kept is None or (
        kept.k.dtype == kept.v.dtype == packed.dtype and kept.k.stride() == kept.v.stride() and kept.k.stride(-1) == 1
    )
    return alike and head_size_fits(cos.shape[-1])
