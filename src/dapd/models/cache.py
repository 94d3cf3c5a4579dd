"""Keys and values of a whole canvas, kept between forward passes."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from dapd.errors import DapdError


class KVCache:
    """Rotated keys and values of every layer, for all columns. A pass over some of the columns overwrites those."""

    def __init__(self) -> None:
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def update(
        self, layer: int, span: slice, k: Float[Tensor, "b h s d"], v: Float[Tensor, "b h s d"], length: int
    ) -> tuple[Float[Tensor, "b h l d"], Float[Tensor, "b h l d"]]:
        """Put in the columns of `span`, get back all of them."""
        if span.start == 0 and span.stop == length:
            self._layers[layer] = (k, v)
        elif layer not in self._layers:
            raise DapdError("a part of the canvas was asked for before a pass over the whole of it filled the cache")
        else:
            keys, values = self._layers[layer]
            keys[:, :, span], values[:, :, span] = k, v
        return self._layers[layer]
