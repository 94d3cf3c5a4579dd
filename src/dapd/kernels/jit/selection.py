"""The greedy independent set: `pack` the edges into words of bits, then decide all nodes of a graph in one program."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def pack(
    edges,
    key,
    nodes,
    words,
    n,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BITS: tl.constexpr,
    PDL: tl.constexpr,
):
    """words[i] has bit j where node j comes before i and edges[i, j]; rows and columns beyond n are empty."""
    if PDL:
        tl.extra.cuda.gdc_wait()
    graph = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    j = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    key_i = tl.load(key + graph * n + i, mask=i < n, other=0.0)[:, None]
    key_j = tl.load(key + graph * n + j, mask=j < n, other=0.0)[None, :]
    node_j = tl.load(nodes + graph * n + j, mask=j < n, other=0).to(tl.int1)
    inside = (i < n)[:, None] & (j < n)[None, :]
    edge = tl.load(edges + (graph * n + i[:, None]) * n + j[None, :], mask=inside, other=0).to(tl.int1)
    # A sort puts nan before everything else, and the lowest position first among equals.
    nan_i, nan_j = key_i != key_i, key_j != key_j
    equal = (key_j == key_i) | (nan_j & nan_i)
    before = ((nan_j | (key_j > key_i)) & ~(nan_i | equal)) | (equal & (j[None, :] < i[:, None]))
    bit = (edge & before & node_j[None, :]).to(tl.int32) << (j % BITS)[None, :]
    packed = tl.sum(tl.reshape(bit, [ROWS, COLUMNS // BITS, BITS]), 2).to(tl.int32)
    word = tl.program_id(2) * (COLUMNS // BITS) + tl.arange(0, COLUMNS // BITS)
    tl.store(words + (graph * SIZE + i[:, None]) * (SIZE // BITS) + word[None, :], packed)


@triton.jit
def rounds(
    words,
    nodes,
    taken,
    n,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
    BITS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Rounds until no node is open: a node is dropped once a blocker is taken, and taken once no blocker is open."""
    if PDL:
        tl.extra.cuda.gdc_wait()
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
