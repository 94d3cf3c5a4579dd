"""The count of operations against figures that were worked out beforehand."""

import pytest
import torch

from dapd.bench.floor import Rate, forward_flops, linear_parameters, matmul_rate
from dapd.models import SHAPES, Transformer

SPEC = Rate(8192, "bfloat16", 2 * 8192**3 / 773e12 * 1e3)


@pytest.mark.parametrize(
    ("length", "predicted", "ms"), [(256, 256, 5.0), (512, 256, 9.8), (1024, 256, 19.6), (1280, 256, 24.6)]
)
def test_floors_of_llada(length: int, predicted: int, ms: float) -> None:
    assert SPEC.tflops == pytest.approx(773)
    assert SPEC.floor_ms(forward_flops(SHAPES["llada-8b"], length, predicted)) == pytest.approx(ms, abs=0.1)


@pytest.mark.parametrize("shape", ["llada-8b", "dream-7b", "tiny-dream"])
def test_linear_parameters_are_those_of_the_model(shape: str) -> None:
    with torch.device("meta"):
        model = Transformer(SHAPES[shape])
    body = sum(p.numel() for name, p in model.layers.named_parameters() if p.dim() == 2)
    assert linear_parameters(SHAPES[shape]) == body


def test_every_factor_counts() -> None:
    config = SHAPES["tiny-llada"]
    once = forward_flops(config, 32, 16)
    assert forward_flops(config, 32, 16, batch=3) == 3 * once
    assert forward_flops(config, 32, 16, computed=32) == once
    part = forward_flops(config, 32, 16, computed=16)
    head = 2 * 16 * config.d_model * config.vocab_size
    assert part - head == (once - head) // 2
    assert once - forward_flops(config, 32, 0) == head


def test_the_rate_is_measured() -> None:
    rate = matmul_rate(torch.device("cpu"), torch.float32, size=32, repeats=3)
    assert rate.ms > 0
    assert rate.floor_ms(2 * 32**3) == pytest.approx(rate.ms)
    assert rate.rested_ms is rate.rested_floor_ms(1.0) is None, "a CPU is not timed at rest"
    assert Rate(32, "float32", 2.0, rested_ms=1.0).rested_floor_ms(2 * 32**3) == pytest.approx(1.0)
