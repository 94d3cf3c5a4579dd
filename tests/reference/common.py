"""What every reference decoder uses: the result, the schedule of quotas, and a stable ranking."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Decoded:
    """The tokens of one sequence and what each forward pass committed: {position: token}, possibly nothing."""

    tokens: list[int]
    steps: list[dict[int, int]] = field(default_factory=list)

    def commit(self, chosen: dict[int, int]) -> None:
        """One forward pass and what came of it."""
        for position, token in chosen.items():
            self.tokens[position] = token
        self.steps.append(dict(chosen))

    @property
    def nfe(self) -> int:
        return len(self.steps)


def masked_in(tokens: list[int], mask_id: int, first: int, stop: int) -> list[int]:
    return [position for position in range(first, stop) if tokens[position] == mask_id]


def quota(n_masked: int, n_steps: int) -> list[int]:
    """LLaDA's schedule: an even split, the remainder goes to the earliest steps."""
    return [n_masked // n_steps + (1 if step < n_masked % n_steps else 0) for step in range(n_steps)]


def ranked(positions: list[int], score: dict[int, float]) -> list[int]:
    """Highest score first; the lowest position first among equals."""
    return sorted(positions, key=lambda position: (-score[position], position))


def forbid(row: Tensor, *ids: int) -> Tensor:
    row = row.clone()
    for index in ids:
        row[index] = -math.inf
    return row


def best(row: Tensor) -> tuple[int, float]:
    """The most probable token and its probability, in the dtype of the row."""
    p = torch.softmax(row, 0)
    token = int(row.argmax())
    return token, float(p[token])


def entropy(row: Tensor) -> float:
    """In nats, over the full distribution; 0 ln 0 is 0."""
    return -sum(p * math.log(p) for p in torch.softmax(row.double(), 0).tolist() if p > 0)
