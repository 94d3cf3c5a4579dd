"""The greedy independent set on the device: all rounds in one launch, and nothing is read on the host."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dapd.kernels import dependent_launch

MAX_NODES = 4096
"""Beyond this a row's state no longer fits the registers of one program."""
BITS = 32
"""Columns per word of the packed edges."""
TILE_WORDS = 16384
"""Words of the packed edges that one program holds at a time."""


def independent_set(
    edges: Bool[Tensor, "b n n"], priority: Float[Tensor, "b n"], nodes: Bool[Tensor, "b n"]
) -> Bool[Tensor, "b n"]:
    """As `dapd.graph.independent_set`, bit for bit, for up to MAX_NODES nodes.

    Two launches. The first packs "j comes before i and keeps it out" into words of 32 columns, spread over the device.
    The second runs the rounds, one program per graph; which nodes are open or taken stays in its registers, so the
    rounds need neither shared memory nor a barrier of our own.
    """
    from dapd.kernels.jit.selection import pack, rounds

    batch, n = nodes.shape
    size = max(BITS, 1 << (n - 1).bit_length())
    words = torch.empty(batch, size, size // BITS, dtype=torch.int32, device=nodes.device)
    taken = torch.empty(batch, n, dtype=torch.bool, device=nodes.device)
    # As in `ranks`: a node of priority -inf still counts as a node. Nan stays nan, and ranks first.
    key = priority.clamp_min(torch.finfo(priority.dtype).min)
    key = key.contiguous() if key.dtype == torch.float64 else key.float().contiguous()
    nodes = nodes.contiguous()
    rows, columns = min(size, 32), min(size, 256)
    launch = dependent_launch(nodes)
    grid = (batch, size // rows, size // columns)
    pack[grid](edges.contiguous(), key, nodes, words, n, size, rows, columns, BITS, **launch)
    tile = min(size // BITS, max(1, TILE_WORDS // size))
    rounds[(batch,)](words, nodes, taken, n, size, tile, BITS, num_warps=4 if size <= 256 else 16, **launch)
    return taken
