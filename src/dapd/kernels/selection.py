"""The greedy independent set on the device: all rounds in one launch, nothing is read back."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float
from torch import Tensor

MAX_NODES = 4096
"""Beyond this a row's state no longer fits the registers of one program."""
BITS = 32
"""Columns per word of the packed relation."""
TILE_WORDS = 16384
"""Words of the relation that one program holds at a time."""


def independent_set(
    blocks: Bool[Tensor, "b n n"], priority: Float[Tensor, "b n"], nodes: Bool[Tensor, "b n"]
) -> Bool[Tensor, "b n"]:
    """As `dapd.graph.independent_set`, bit for bit, for up to MAX_NODES nodes.

    Two launches. The first packs "j comes before i and keeps it out" into words of 32 columns, spread over the device.
    The second runs the rounds, one program per graph; which nodes are open or taken stays in its registers, so rounds
    need neither memory that threads share nor a barrier of ours.
    """
    batch, n = nodes.shape
    size = max(BITS, triton.next_power_of_2(n))
    words = torch.empty(batch, size, size // BITS, dtype=torch.int32, device=nodes.device)
    taken = torch.empty(batch, n, dtype=torch.bool, device=nodes.device)
    # As in `ranks`: an infinitely low priority is still that of a node. Nan stays, and comes first.
    key = priority.clamp_min(torch.finfo(priority.dtype).min)
    key = key.contiguous() if key.dtype == torch.float64 else key.float().contiguous()
    nodes = nodes.contiguous()
    rows, columns = min(size, 32), min(size, 256)
    _pack[(batch, size // rows, size // columns)](blocks.contiguous(), key, nodes, words, n, size, rows, columns, BITS)
    n_words = size // BITS
    _rounds[(batch,)](
        words, nodes, taken, n, size, min(n_words, max(1, TILE_WORDS // size)), BITS, num_warps=4 if size <= 256 else 16
    )
    return taken


@triton.jit  # type: ignore[untyped-decorator]
def _pack(
    blocks: Any,
    key: Any,
    nodes: Any,
    words: Any,
    n: Any,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BITS: tl.constexpr,
) -> None:
    """words[i] has bit j where node j comes before i and blocks[i, j]; rows and columns beyond n are empty."""
    graph = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    j = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    key_i = tl.load(key + graph * n + i, mask=i < n, other=0.0)[:, None]
    key_j = tl.load(key + graph * n + j, mask=j < n, other=0.0)[None, :]
    node_j = tl.load(nodes + graph * n + j, mask=j < n, other=0).to(tl.int1)
    inside = (i < n)[:, None] & (j < n)[None, :]
    edge = tl.load(blocks + (graph * n + i[:, None]) * n + j[None, :], mask=inside, other=0).to(tl.int1)
    # A sort puts nan before everything else, and the lowest position first among equals.
    nan_i, nan_j = key_i != key_i, key_j != key_j
    equal = (key_j == key_i) | (nan_j & nan_i)
    before = ((nan_j | (key_j > key_i)) & ~(nan_i | equal)) | (equal & (j[None, :] < i[:, None]))
    bit = (edge & before & node_j[None, :]).to(tl.int32) << (j % BITS)[None, :]
    packed = tl.sum(tl.reshape(bit, [ROWS, COLUMNS // BITS, BITS]), 2).to(tl.int32)
    word = tl.program_id(2) * (COLUMNS // BITS) + tl.arange(0, COLUMNS // BITS)
    tl.store(words + (graph * SIZE + i[:, None]) * (SIZE // BITS) + word[None, :], packed)


@triton.jit  # type: ignore[untyped-decorator]
def _rounds(
    words: Any,
    nodes: Any,
    taken: Any,
    n: Any,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
    BITS: tl.constexpr,
) -> None:
    """Rounds until nothing is open: who waits for no open blocker is taken, or dropped where a blocker is taken."""
    graph = tl.program_id(0).to(tl.int64)
    WORDS: tl.constexpr = SIZE // BITS
    i = tl.arange(0, SIZE)
    open_ = tl.load(nodes + graph * n + i, mask=i < n, other=0).to(tl.int32)
    in_set = tl.zeros([SIZE], dtype=tl.int32)
    shift = tl.arange(0, BITS)[None, :]
    part = tl.arange(0, WORDS // TILE)[:, None]
    column = tl.arange(0, TILE)
    row = words + (graph * SIZE + i[:, None]) * WORDS
    while tl.max(open_, 0) > 0:
        open_words = tl.sum(tl.reshape(open_, [WORDS, BITS]) << shift, 1).to(tl.int32)
        set_words = tl.sum(tl.reshape(in_set, [WORDS, BITS]) << shift, 1).to(tl.int32)
        open_parts = tl.reshape(open_words, [WORDS // TILE, TILE])
        set_parts = tl.reshape(set_words, [WORDS // TILE, TILE])
        waits = tl.zeros([SIZE], dtype=tl.int32)
        blocked = tl.zeros([SIZE], dtype=tl.int32)
        for at in range(WORDS // TILE):
            relation = tl.load(row + (at * TILE + column)[None, :])
            still_open = tl.sum(tl.where(part == at, open_parts, 0), 0).to(tl.int32)
            already_in = tl.sum(tl.where(part == at, set_parts, 0), 0).to(tl.int32)
            waits = waits | tl.max(((relation & still_open[None, :]) != 0).to(tl.int32), 1)
            blocked = blocked | tl.max(((relation & already_in[None, :]) != 0).to(tl.int32), 1)
        in_set = in_set | (open_ & (1 - blocked) & (1 - waits))
        open_ = open_ & (1 - blocked) & waits
    tl.store(taken + graph * n + i, in_set.to(tl.int1), mask=i < n)
