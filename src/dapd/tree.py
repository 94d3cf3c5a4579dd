"""Tensors inside whatever they are wrapped in: dataclasses, dictionaries, lists, tuples."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Bool, UInt8
from torch import Tensor


def merge(choose: Callable[[Tensor, Any], Tensor], new: Any, old: Any) -> Any:
    """`new` with `choose(tensor, what stands in its place in old)` for every tensor; None where old has nothing."""
    if isinstance(new, Tensor):
        return choose(new, old)
    same = type(new) is type(old)
    if dataclasses.is_dataclass(new) and not isinstance(new, type):
        fields = {
            f.name: merge(choose, getattr(new, f.name), getattr(old, f.name) if same else None)
            for f in dataclasses.fields(new)
        }
        return dataclasses.replace(new, **fields)
    if isinstance(new, dict):
        return {key: merge(choose, value, old.get(key) if same else None) for key, value in new.items()}
    if isinstance(new, list | tuple):
        others = old if same and len(old) == len(new) else [None] * len(new)
        items = [merge(choose, a, b) for a, b in zip(new, others, strict=True)]
        return type(new)(*items) if hasattr(new, "_fields") else type(new)(items)
    return new


def mapped(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """The same with `function` of every tensor."""
    return merge(lambda tensor, _: function(tensor), tree, None)


def filled(tree: Any, values: Iterable[Tensor]) -> Any:
    """The same with these tensors, in order, in the place of its own."""
    values = iter(values)
    return mapped(lambda _: next(values), tree)


def leaves(tree: Any) -> Iterator[Any]:
    """Everything in it, in order: the tensors, other values, and the kinds of the wrappers on the way."""
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        yield type(tree)
        for field in dataclasses.fields(tree):
            yield from leaves(getattr(tree, field.name))
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield key
            yield from leaves(value)
    elif isinstance(tree, list | tuple):
        yield type(tree)
        for value in tree:
            yield from leaves(value)
    else:
        yield tree


def tensors(tree: Any) -> list[Tensor]:
    """All tensors, in order."""
    return [leaf for leaf in leaves(tree) if isinstance(leaf, Tensor)]


def signature(tree: Any) -> tuple[Any, ...]:
    """What two trees must have in common to be put in each other's place: all but the tensors' values."""
    return tuple((*leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else repr(leaf) for leaf in leaves(tree))


def keep_idle(active: Bool[Tensor, " batch"], new: Any, old: Any) -> Any:
    """`new` for the active rows and `old` for the others."""

    def choose(a: Tensor, b: Any) -> Tensor:
        same = isinstance(b, Tensor) and b.shape == a.shape and a.shape[:1] == active.shape
        return torch.where(active.view(-1, *[1] * (a.dim() - 1)), a, b) if same else a

    return merge(choose, new, old)


class Packing:
    """Tensors in one piece of memory: to copy them all is one operation."""

    def __init__(self, like: Sequence[Tensor]) -> None:
        self.kinds = [(tensor.dtype, tensor.shape) for tensor in like]
        # Wide numbers first: then everything lies where its dtype may begin.
        self.order = sorted(range(len(like)), key=lambda number: -like[number].element_size())
        self.sizes = [like[number].numel() * like[number].element_size() for number in self.order]

    def pack(self, tensors: Sequence[Tensor]) -> UInt8[Tensor, " bytes"]:
        return torch.cat([tensors[number].reshape(-1).view(torch.uint8) for number in self.order])

    def unpack(self, packed: UInt8[Tensor, " bytes"]) -> list[Tensor]:
        """Views, in the order in which the tensors came."""
        found = [packed] * len(self.kinds)
        for number, part in zip(self.order, packed.split_with_sizes(self.sizes), strict=True):
            dtype, shape = self.kinds[number]
            found[number] = part.view(dtype).view(shape)
        return found


def on_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of one device on the host, brought over in one transfer."""
    if tensors[0].device.type == "cpu":
        return list(tensors)
    packing = Packing(tensors)
    return packing.unpack(packing.pack(tensors).cpu())
