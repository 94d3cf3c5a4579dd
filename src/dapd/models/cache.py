"""Keys and values of rows, kept between forward passes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dapd.models.columns import Span, as_tensor


class KVPool:
    """Memory for the rotated keys and values of `rows` rows of `length` columns, layer by layer.

    The memory of a layer is taken once and stays where it is, so that a recorded pass can be replayed.
    """

    def __init__(self, rows: int, length: int) -> None:
        self.rows = rows
        self.length = length
        self._layers: dict[tuple[int, torch.dtype], Tensor] = {}

    def layer(self, index: int, like: Float[Tensor, "b h s d"]) -> Float[Tensor, "rows h length d"]:
        """The memory of a layer, for keys and values of the same dtype and head shape as `like`."""
        # Under autocast the keys have another dtype than the weights, so the dtype is part of the name.
        name = (index, like.dtype)
        if name not in self._layers:
            # Zeros: columns that nobody wrote are hidden by a mask, but 0 times nan would still be nan.
            self._layers[name] = like.new_zeros((self.rows, like.shape[1], self.length, like.shape[3]))
        return self._layers[name]

    def clear(self, row: int) -> None:
        """Set what a row kept to zero, for the next row in its place."""
        for kept in self._layers.values():
            kept[row] = 0

    def grown(self, rows: int, length: int) -> KVPool:
        """A larger pool with the same content; columns are aligned on the right, as the rows of a batch are."""
        larger = KVPool(rows, length)
        for name, kept in self._layers.items():
            room = kept.new_zeros((rows, kept.shape[1], length, kept.shape[3]))
            room[: self.rows, :, length - self.length :] = kept
            larger._layers[name] = room
        return larger


@dataclass(frozen=True)
class KVCache:
    """The part of a pool that belongs to the rows of one batch."""

    pool: KVPool
    places: Int[Tensor, " b"] | None = None
    """For each row of the batch its row in the pool; None: all rows of the pool, in order."""

    def update(self, layer: int, kv: Float[Tensor, "b h s d"], span: Span) -> Float[Tensor, "b h l d"]:
        """Keep the keys and values of the span's columns, and return those of all columns.

        Where the batch is a selection of the pool's rows they are copied out, because attention needs them contiguous.
        """
        kept = self.pool.layer(layer, kv)
        if self.places is None and isinstance(span, slice):
            kept[:, :, span].copy_(kv)
            return kept
        columns = as_tensor(span, kv) if isinstance(span, slice) else span
        if self.places is None:
            kept.scatter_(2, columns[:, None, :, None].expand_as(kv), kv)
            return kept
        kept[self.places[:, None], :, columns] = kv.transpose(1, 2)
        return kept[self.places]
