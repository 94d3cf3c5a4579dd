"""Keys and values of a whole canvas, kept between forward passes."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from dapd.errors import DapdError
from dapd.models.columns import Span


class KVCache:
    """Rotated keys and values of every layer, for all columns. A pass over some of the columns overwrites those."""

    def __init__(self) -> None:
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def update(
        self, layer: int, span: Span, k: Float[Tensor, "b h s d"], v: Float[Tensor, "b h s d"], length: int
    ) -> tuple[Float[Tensor, "b h l d"], Float[Tensor, "b h l d"]]:
        """Put in the columns of `span`, get back all of them."""
        whole = isinstance(span, slice) and span.start == 0 and span.stop == length
        known = self._layers.get(layer)
        if whole and (known is None or known[0].shape != k.shape):
            self._layers[layer] = (k, v)
            return k, v
        if known is None:
            raise DapdError("a part of the canvas was asked for before a pass over the whole of it filled the cache")
        # In place, also by a pass over everything: recorded passes know where keys and values lie.
        for kept, new in zip(known, (k, v), strict=True):
            if isinstance(span, slice):
                kept[:, :, span] = new
            else:
                kept.scatter_(2, span[:, None, :, None].expand(-1, new.shape[1], -1, new.shape[3]), new)
        return known
