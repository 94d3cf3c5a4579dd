"""The canvas: one text to fill, made of fixed tokens and of masks among or after them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dapd.errors import DapdError


@dataclass(frozen=True)
class Canvas:
    """A row of tokens with masks, on the host. `commit` returns a new canvas; nothing is changed in place."""

    tokens: Int[Tensor, " length"]
    """Token ids, `mask_id` where nothing is decided yet."""
    slots: Bool[Tensor, " length"]
    """Positions that decoding has to fill: those that were masked when the canvas was made."""
    mask_id: int
    start: int
    """First position of the generation region: blocks are counted from here to `stop`."""
    n_new: int | None = None
    """Number of new tokens after the prompt; None where masks may be anywhere (infilling)."""

    @classmethod
    def blank(cls, prompt: Sequence[int], n_new: int, *, mask_id: int, closing: Sequence[int] = ()) -> Canvas:
        """A prompt followed by `n_new` masks and by `closing`, the tokens that close a text in some models' training.

        Masks inside the prompt are filled too, with the first block: a caller who puts the mask's id into a prompt
        wants that, and finds the result in the canvas. `DiffusionLM` refuses them, because in a prompt that a person
        wrote they are a mistake, and filling them would change the question.
        """
        if n_new < 1:
            raise DapdError(f"max_new_tokens is {n_new}; it must be at least 1")
        tokens = torch.tensor([*prompt, *[mask_id] * n_new, *closing], dtype=torch.long)
        return cls(tokens, tokens == mask_id, mask_id, len(prompt), n_new)

    @classmethod
    def infill(cls, row: Sequence[int], *, mask_id: int) -> Canvas:
        """A row with masks anywhere; it needs at least one."""
        tokens = torch.tensor(list(row), dtype=torch.long)
        slots = tokens == mask_id
        if not slots.any():
            raise DapdError(f"the row holds no mask token (id {mask_id}): there is nothing to fill")
        return cls(tokens, slots, mask_id, int(slots.int().argmax()))

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def stop(self) -> int:
        """The first position after the generation region, where the closing tokens begin if there are any."""
        return self.length if self.n_new is None else self.start + self.n_new

    @property
    def masked(self) -> Bool[Tensor, " length"]:
        """Slots that are not filled yet."""
        return (self.tokens == self.mask_id) & self.slots

    def fix(self, tokens: Mapping[int, int]) -> Canvas:
        """Fix chosen positions before decoding: {position, counted from the first token of the prompt: token id}."""
        fixed = self.tokens.clone()
        slots = self.slots.clone()
        for position, token in tokens.items():
            if not 0 <= position < self.length:
                raise DapdError(f"cannot fix position {position}: the row has positions 0..{self.length - 1}")
            if not self.slots[position]:
                raise DapdError(f"cannot fix position {position}: it is not masked")
            if token == self.mask_id:
                raise DapdError(f"cannot fix position {position} to the mask token")
            fixed[position] = token
            slots[position] = False
        return replace(self, tokens=fixed, slots=slots)

    def blocks(self, block_length: int | None = None, n_blocks: int | None = None) -> list[slice]:
        """Blocks of `block_length` positions, or `n_blocks` of them (None: one), to the end of the generation region.

        They are counted from the right end. The first one reaches left to the first mask, so that masks inside a prompt
        belong to it; in a template it may be shorter than the others.
        """
        region = self.stop - self.start
        n_blocks = 1 if n_blocks is None else n_blocks
        size = -(-region // n_blocks) if block_length is None else block_length
        if size < 1:
            raise DapdError(f"block_length is {size}; it must be at least 1")
        if self.n_new is not None and block_length is None and self.n_new % n_blocks:
            raise DapdError(f"{n_blocks} blocks do not divide the {self.n_new} new tokens evenly")
        if self.n_new is not None and self.n_new % size:
            raise DapdError(f"block_length {size} does not divide the {self.n_new} new tokens")
        if not self.slots.any():
            return []
        edges = [self.stop - k * size for k in range(-(-region // size), -1, -1)]
        edges[0] = min(max(edges[0], self.start), int(self.slots.int().argmax()))
        return [slice(a, b) for a, b in pairwise(edges)]

    def commit(self, window: slice, commit: Bool[Tensor, " n"], token: Int[Tensor, " n"]) -> Canvas:
        """A new canvas with `token` where `commit`, at the window's positions."""
        tokens = self.tokens.clone()
        tokens[window] = torch.where(commit, token, tokens[window])
        return replace(self, tokens=tokens)
