"""Trees of tensors: dataclasses, dictionaries, lists and tuples that hold tensors, at any depth."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor


def mapped(function: Callable[[Tensor], Any], tree: Any) -> Any:
    """The same tree with `function(tensor)` in the place of every tensor."""
    if isinstance(tree, Tensor):
        return function(tree)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        # Not with `replace`: it leaves out fields that the class fills itself, and these may hold tensors too.
        kind = type(tree)
        copy = kind.__new__(kind)
        for field in dataclasses.fields(tree):
            object.__setattr__(copy, field.name, mapped(function, getattr(tree, field.name)))
        return copy
    if isinstance(tree, dict):
        return {key: mapped(function, value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        items = [mapped(function, item) for item in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    return tree


def filled(tree: Any, values: Iterable[Tensor]) -> Any:
    """The same tree with these tensors, in order, in the place of its own."""
    values = iter(values)
    return mapped(lambda _: next(values), tree)


def leaves(tree: Any) -> Iterator[Any]:
    """Everything in a tree, in order: the tensors, other values, and the types of the wrappers on the way."""
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


def signature(tree: Any) -> Hashable:
    """What two trees must have in common to stand in each other's place: all but the values of their tensors."""
    return tuple((*leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else repr(leaf) for leaf in leaves(tree))


def packed(tree: Any) -> UInt8[Tensor, " bytes"]:
    """All tensors in one piece of memory, so that one operation copies them."""
    values = tensors(tree)
    return torch.cat([values[number].reshape(-1).view(torch.uint8) for number in _wide_first(values)])


def unpacked(memory: UInt8[Tensor, " bytes"], like: Any) -> Any:
    """A tree like another, whose tensors are views of the memory into which such a tree was packed."""
    values = tensors(like)
    order = _wide_first(values)
    parts = memory.split_with_sizes([values[number].nbytes for number in order])
    views = {n: part.view(values[n].dtype).view(values[n].shape) for n, part in zip(order, parts, strict=True)}
    return filled(like, [views[number] for number in range(len(values))])


def _wide_first(values: Sequence[Tensor]) -> list[int]:
    """The numbers of the tensors, wide ones first: packed so, each begins at an address that its dtype allows."""
    return sorted(range(len(values)), key=lambda number: -values[number].element_size())


def moved(tree: Any, device: torch.device) -> Any:
    """The tree with its tensors on another device, brought there in one transfer."""
    values = tensors(tree)
    if not values or values[0].device == device:
        return tree
    return unpacked(packed(tree).to(device), tree)
