"""Keys and values of a whole canvas, kept between forward passes."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from dapd.errors import DapdError
from dapd.models.columns import Span


class KVCache:
    """Rotated keys and values of every layer, for all columns. A pass over some of the columns overwrites those.

    Every pass writes into the same memory, so that a recorded pass can be replayed.
    """

    def __init__(self) -> None:
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def update(
        self, layer: int, span: Span, k: Float[Tensor, "b h s d"], v: Float[Tensor, "b h s d"], length: int
    ) -> tuple[Float[Tensor, "b h l d"], Float[Tensor, "b h l d"]]:
        """Put in the columns of `span`, get back all of them."""
        kept = self._layers.get(layer)
        if isinstance(span, slice) and span.start == 0 and span.stop == length:
            if kept is None or kept[0].shape != k.shape:
                kept = self._layers[layer] = (_room(k), _room(v))
        elif kept is None:
            raise DapdError("a part of the canvas was asked for before a pass over the whole of it filled the cache")
        for place, new in zip(kept, (k, v), strict=True):
            if isinstance(span, slice):
                place[:, :, span].copy_(new)
            else:
                place.scatter_(2, span[:, None, :, None].expand(-1, new.shape[1], -1, new.shape[3]), new)
        return kept


def _room(like: Float[Tensor, "b h s d"]) -> Float[Tensor, "b h s d"]:
    # Not `empty_like`: that would keep the strides of a view into a wider tensor.
    return like.new_empty(like.shape)
