"""The floor: multiplications that a forward pass cannot do without, at the rate of a large matrix product."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dapd.bench.timing import time_calls
from dapd.models import TransformerConfig

SIZES = {"cuda": 8192, "cpu": 1024}
"""Side of the square matrices whose product sets the rate."""


def linear_parameters(config: TransformerConfig) -> int:
    """Weights of all linear layers but the head: each costs one multiplication and one addition per token."""
    kv = config.n_kv_heads * config.head_dim
    attention = 2 * config.d_model * (config.d_model + kv)
    return config.n_layers * (attention + 3 * config.d_model * config.d_mlp)


def forward_flops(
    config: TransformerConfig, length: int, predicted: int, *, batch: int = 1, computed: int | None = None
) -> int:
    """Operations of one forward pass over rows of `length` columns, with logits for `predicted` of them.

    `computed`: columns that are not taken from a cache (None: all). Norms, rotations, softmaxes and attention capture
    are left out, so a time that comes from this number is a floor.
    """
    rows = length if computed is None else computed
    attention = 4 * rows * length * config.d_model * config.n_layers
    head = 2 * predicted * config.d_model * config.vocab_size
    return batch * (2 * rows * linear_parameters(config) + attention + head)


@dataclass(frozen=True)
class Rate:
    """The speed of a large matrix product on one device."""

    size: int
    dtype: str
    ms: float
    """Milliseconds of one product in steady work, which is how everything else is timed, too."""
    rested_ms: float | None = None
    """The same on a GPU that was idle before: its clock is higher until it reaches its power limit. None: no GPU."""

    @property
    def tflops(self) -> float:
        return 2 * self.size**3 / self.ms / 1e9

    @property
    def rested_tflops(self) -> float | None:
        return None if self.rested_ms is None else 2 * self.size**3 / self.rested_ms / 1e9

    def floor_ms(self, flops: float) -> float:
        return flops / self.tflops / 1e9

    def rested_floor_ms(self, flops: float) -> float | None:
        return None if self.rested_tflops is None else flops / self.rested_tflops / 1e9


def matmul_rate(
    device: torch.device, dtype: torch.dtype, *, size: int | None = None, repeats: int = 20, rested: bool = True
) -> Rate:
    """The rate of a square product in this dtype, measured now; on a GPU after a rest, too, if `rested` is set."""
    side = size or SIZES.get(device.type, SIZES["cpu"])
    generator = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(side, side, device=device, dtype=dtype, generator=generator) for _ in range(2))
    rested_ms = None
    warmup = 5
    if device.type == "cuda":
        if rested:
            rested_ms = time_calls(lambda: a @ b, device, warmup=warmup, repeats=repeats, rested=True).ms
        warmup = 100  # nothing heats a GPU better than the product itself
    steady_ms = time_calls(lambda: a @ b, device, warmup=warmup, repeats=repeats).ms
    return Rate(side, str(dtype).removeprefix("torch."), steady_ms, rested_ms)
