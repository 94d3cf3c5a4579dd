"""Keys and values of a whole canvas, kept between forward passes."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from dapd.errors import DapdError


class KVCache:
    """Rotated keys and values of every layer, for all columns. A pass over some of the columns overwrites those.

    Every pass writes into the same memory, so that a recorded pass can be replayed.
    """

    def __init__(self) -> None:
        self._layers: dict[tuple[int, torch.dtype], tuple[Tensor, Tensor]] = {}

    def room(
        self, layer: int, shape: tuple[int, int, int, int], like: Tensor, *, whole: bool
    ) -> tuple[Float[Tensor, "b h l d"], Float[Tensor, "b h l d"]]:
        """Where a layer's keys and values lie; a pass over the whole canvas makes the room if there is none."""
        kept = self._layers.get((layer, like.dtype))
        fits = kept is not None and kept[0].shape == torch.Size(shape)
        if whole and not fits:
            kept = self._layers[layer, like.dtype] = (like.new_empty(shape), like.new_empty(shape))
        elif kept is None:
            raise DapdError("a part of the canvas was asked for before a pass over the whole of it filled the cache")
        elif not fits:
            rows, _, length, _ = kept[0].shape
            raise DapdError(f"the cache holds {rows} rows of {length} columns; the canvas has {shape[0]} of {shape[2]}")
        return kept
