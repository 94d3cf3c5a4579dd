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
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def room(
        self, layer: int, shape: tuple[int, int, int, int], like: Tensor, *, whole: bool
    ) -> tuple[Float[Tensor, "b h l d"], Float[Tensor, "b h l d"]]:
        """Where a layer's keys and values lie; a pass over the whole canvas makes the room if there is none."""
        kept = self._layers.get(layer)
        if whole and (kept is None or kept[0].shape != torch.Size(shape)):
            kept = self._layers[layer] = (like.new_empty(shape), like.new_empty(shape))
        if kept is None:
            raise DapdError("a part of the canvas was asked for before a pass over the whole of it filled the cache")
        return kept
