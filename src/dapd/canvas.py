"""The canvas: prompts and masks as one left-padded tensor. Blocks are column slices, the same for every row."""

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
    """A batch of rows that end at the same column; `commit` gives a new one, nothing is changed in place."""

    tokens: Int[Tensor, "batch length"]
    """Token ids, `mask_id` where nothing is decided yet, `pad_id` on the left padding."""
    valid: Bool[Tensor, "batch length"]
    """False on the padding."""
    slots: Bool[Tensor, "batch length"]
    """Positions that were masked when the canvas was made: what decoding has to fill."""
    mask_id: int
    start: int
    """First column of the generation region: blocks are counted from here to the end."""
    n_new: int | None = None
    """New tokens per row after the prompts; None where the masks stand anywhere (infilling)."""

    @classmethod
    def blank(
        cls,
        prompts: Sequence[Sequence[int]],
        n_new: int,
        *,
        mask_id: int,
        pad_id: int,
        device: torch.device | str = "cpu",
    ) -> Canvas:
        """Prompts, each followed by `n_new` masks. Masks inside a prompt are filled too (with the first block)."""
        if n_new < 1:
            raise DapdError(f"max_new_tokens is {n_new}; it must be at least 1")
        rows = [[*prompt, *[mask_id] * n_new] for prompt in prompts]
        canvas = cls.infill(rows, mask_id=mask_id, pad_id=pad_id, device=device)
        return replace(canvas, start=canvas.length - n_new, n_new=n_new)

    @classmethod
    def infill(
        cls, rows: Sequence[Sequence[int]], *, mask_id: int, pad_id: int, device: torch.device | str = "cpu"
    ) -> Canvas:
        """Rows of any length with masks anywhere; every row needs at least one."""
        if not rows:
            raise DapdError("no prompts: the list is empty; give at least one")
        length = max(len(row) for row in rows)
        tokens = torch.tensor([[pad_id] * (length - len(row)) + list(row) for row in rows], dtype=torch.long)
        valid = torch.tensor([[False] * (length - len(row)) + [True] * len(row) for row in rows], dtype=torch.bool)
        slots = (tokens == mask_id) & valid
        for number, empty in enumerate((~slots.any(-1)).tolist()):
            if empty:
                raise DapdError(f"row {number} holds no mask token (id {mask_id}): there is nothing to fill")
        start = int(slots.any(0).nonzero()[0])
        return cls(tokens.to(device), valid.to(device), slots.to(device), mask_id, start)

    @property
    def length(self) -> int:
        return self.tokens.shape[1]

    @property
    def batch(self) -> int:
        return self.tokens.shape[0]

    @property
    def masked(self) -> Bool[Tensor, "batch length"]:
        return (self.tokens == self.mask_id) & self.slots

    @property
    def padding(self) -> Int[Tensor, " batch"]:
        """Number of padding columns of each row."""
        return (~self.valid).sum(-1)

    def fix(self, row: int, tokens: Mapping[int, int]) -> Canvas:
        """Fix chosen positions of a row before decoding: {position in the row, prompt included: token id}."""
        pad = int(self.padding[row])
        fixed, slots = self.tokens.clone(), self.slots.clone()
        for position, token in tokens.items():
            if not 0 <= position < self.length - pad:
                raise DapdError(
                    f"cannot fix position {position} of row {row}: it has positions 0..{self.length - pad - 1}"
                )
            if not self.slots[row, pad + position]:
                raise DapdError(f"cannot fix position {position} of row {row}: it is not masked")
            if token == self.mask_id:
                raise DapdError(f"cannot fix position {position} of row {row} to the mask token")
            fixed[row, pad + position], slots[row, pad + position] = token, False
        return replace(self, tokens=fixed, slots=slots)

    def blocks(self, block_length: int | None = None) -> list[slice]:
        """Blocks of `block_length` columns up to the last one (None: a single block).

        They are counted from the right end, which all rows share. The first one reaches left to the first mask of all,
        so that masks inside a prompt belong to it.
        """
        region = self.length - self.start
        size = region if block_length is None else block_length
        if size < 1:
            raise DapdError(f"block_length is {size}; it must be at least 1")
        if self.n_new is not None and self.n_new % size:
            raise DapdError(f"block_length {size} does not divide the {self.n_new} new tokens")
        columns = self.slots.any(0).nonzero()
        if not len(columns):
            return []
        n_blocks = -(-region // size)
        edges = [self.length - k * size for k in range(n_blocks, -1, -1)]
        edges[0] = min(max(edges[0], self.start), int(columns[0]))
        return [slice(a, b) for a, b in pairwise(edges)]

    def commit(self, window: slice, commit: Bool[Tensor, "batch n"], token: Int[Tensor, "batch n"]) -> Canvas:
        """A new canvas with `token` where `commit`, in the window's columns."""
        tokens = self.tokens.clone()
        tokens[:, window] = torch.where(commit, token, tokens[:, window])
        return replace(self, tokens=tokens)

    def row(self, index: int) -> Int[Tensor, " n"]:
        """One row without its padding."""
        return self.tokens[index][self.valid[index]]
