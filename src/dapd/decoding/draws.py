"""Random numbers for a decoding: every row has a generator of its own, so its neighbours change nothing."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


class Draws:
    """The random numbers of one row."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self.generator = torch.Generator(device).manual_seed(seed)

    def uniform(self, *shape: int) -> Float[Tensor, ...]:
        """Numbers between 0 and 1, both excluded: their logarithms are taken."""
        numbers = torch.rand(shape, generator=self.generator, dtype=torch.float64, device=self.generator.device)
        return numbers.clamp_min(torch.finfo(torch.float64).tiny)
