"""The toy Markov random field: sequences (X1..X5, Y1..Y4) with Y_i = (X_i + X_{i+1}) mod 3, and its true graph."""

from __future__ import annotations

import itertools

import torch
from jaxtyping import Bool, Int
from torch import Tensor

N_VALUES = 3
"""Each variable is 0, 1 or 2; the mask token comes after them."""
MASK_ID = N_VALUES
N_FREE = 5
"""X1..X5, drawn independently and uniformly."""
LENGTH = 2 * N_FREE - 1
TRIANGLES = tuple((i, i + 1, N_FREE + i) for i in range(N_FREE - 1))
"""Each constraint ties X_i, X_{i+1} and Y_i to each other."""


def complete(free: Int[Tensor, "*b five"]) -> Int[Tensor, "*b nine"]:
    """The whole sequence that follows from X1..X5."""
    return torch.cat([free, (free[..., :-1] + free[..., 1:]) % N_VALUES], dim=-1)


def all_sequences() -> Int[Tensor, "all nine"]:
    """Every sequence of positive probability: 3^5 = 243, all equally likely."""
    return complete(torch.tensor(list(itertools.product(range(N_VALUES), repeat=N_FREE))))


def draw_sequences(n: int, seed: int) -> Int[Tensor, "n nine"]:
    """A data set of `n` independent draws."""
    generator = torch.Generator().manual_seed(seed)
    return complete(torch.randint(N_VALUES, (n, N_FREE), generator=generator))


def true_graph() -> Bool[Tensor, "nine nine"]:
    """edge[i, j]: positions i and j share a constraint. 12 edges; X2..X4 have degree 4, the others 2."""
    edge = torch.zeros(LENGTH, LENGTH, dtype=torch.bool)
    for triangle in TRIANGLES:
        for i, j in itertools.permutations(triangle, 2):
            edge[i, j] = True
    return edge


def broken_constraints(sequences: Int[Tensor, "*b nine"]) -> Int[Tensor, "*b"]:
    """How many of the four constraints a sequence breaks."""
    return (sequences[..., N_FREE:] != complete(sequences[..., :N_FREE])[..., N_FREE:]).sum(-1)


def valid(sequences: Int[Tensor, "*b nine"]) -> Bool[Tensor, "*b"]:
    """Whether all four constraints hold."""
    return broken_constraints(sequences) == 0
