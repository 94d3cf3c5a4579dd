"""Random numbers for a decoding: every row has a generator of its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dapd.canvas import Canvas
from dapd.errors import DapdError


@dataclass(frozen=True)
class Drawn:
    """The random numbers of one pass, where there are any."""

    uniform: Float[Tensor, "batch n vocab"] | None
    """For the tokens."""
    noise: Float[Tensor, "batch n"] | None
    """For the strategy."""


class Draws:
    """A row draws for the columns it would have alone, and nothing while it sits out: neighbours change nothing."""

    def __init__(self, canvas: Canvas, seed: int | tuple[int, ...], *, whole_canvas: bool) -> None:
        seeds = seed if isinstance(seed, tuple) else tuple(seed + row for row in range(canvas.batch))
        if len(seeds) != canvas.batch:
            raise DapdError(f"{len(seeds)} seeds for {canvas.batch} rows; give one number, or one per row")
        self.device = canvas.tokens.device
        self.generators = [torch.Generator(self.device).manual_seed(s) for s in seeds]
        # Where each row's window would begin if it were decoded alone.
        slots = canvas.slots.int().argmax(-1)
        first = slots if canvas.n_new is None else slots.clamp_max(canvas.start)
        self.first = [int(column) for column in (canvas.padding if whole_canvas else first).tolist()]

    def uniform(self, window: slice, wanted: list[bool], *more: int) -> Float[Tensor, "batch n ..."]:
        """Uniform(0, 1) numbers for the window's columns in the wanted rows, 0.5 in the others."""
        n = window.stop - window.start
        out = torch.full((len(wanted), n, *more), 0.5, dtype=torch.float64, device=self.device)
        for row, generator in enumerate(self.generators):
            if wanted[row]:
                own = max(window.start, self.first[row]) - window.start
                out[row, own:] = torch.rand((n - own, *more), generator=generator, dtype=out.dtype, device=self.device)
        return out.clamp_min(torch.finfo(torch.float64).tiny)
