"""The optimizer: orthogonal steps, each part of a fused matrix by itself, AdamW for the rest."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dapd.lab.checkpoint import network_config
from dapd.lab.optimizer import BETAS, UPDATE_SIZE, Optimizer, orthogonal
from dapd.lab.settings import TrainSettings
from dapd.lab.tokenizer import LabTokenizer
from dapd.models import Transformer
from dapd.models.transformer import unfused

SETTINGS = replace(TrainSettings(), layers=2, width=32, heads=2, mlp=48)


def network() -> Transformer:
    torch.manual_seed(0)
    return Transformer(network_config(SETTINGS, LabTokenizer.build()))


def weights_of(model: Transformer) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 40, 16), (2, 16, 40)])
def test_singular_values_become_alike(shape: tuple[int, int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator)
    found = orthogonal(x)
    assert found.shape == x.shape
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.3
    assert values.max() < 1.3
    # The directions stay: every matrix points the way of the exact nearest orthogonal one.
    u, _, v = torch.linalg.svd(x, full_matrices=False)
    cosine = (found * (u @ v)).sum((-2, -1)) / found.norm(dim=(-2, -1)) / (u @ v).norm(dim=(-2, -1))
    assert (cosine > 0.95).all()


def test_one_step_moves_every_part_as_it_should() -> None:
    model = network()
    before, weights = weights_of(model), weights_of(model)
    generator = torch.Generator().manual_seed(1)
    gradients = {name: torch.randn(w.shape, generator=generator) for name, w in weights.items()}
    Optimizer(model.config, weights, muon=True, decay=0.0).step(gradients, 0.01)
    moved = {name: weights[name] - before[name] for name in weights}
    for name, part in unfused(model.config, moved).items():
        if name.startswith("layers.") and part.ndim == 2:
            size = 0.01 * UPDATE_SIZE * max(part.shape) ** 0.5
            assert torch.linalg.svdvals(part / size).max() < 1.3, name
            gradient = unfused(model.config, gradients)[name]
            assert (part * gradient).sum() < 0, name
        elif part.ndim == 1:
            # AdamW's first step has the size of the learning rate everywhere.
            assert torch.allclose(part.abs(), torch.full_like(part, 0.01), rtol=1e-3), name


def test_without_muon_it_is_adamw() -> None:
    model = network()
    weights = weights_of(model)
    reference = [weight.clone().requires_grad_() for weight in weights.values()]
    vectors = [w for w in reference if w.ndim == 1]
    matrices = [w for w in reference if w.ndim > 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    adam = torch.optim.AdamW(groups, lr=0.01, betas=BETAS)
    own = Optimizer(model.config, weights, muon=False, decay=0.1)
    generator = torch.Generator().manual_seed(2)
    for _ in range(3):
        gradients = {name: torch.randn(w.shape, generator=generator) for name, w in weights.items()}
        for weight, gradient in zip(reference, gradients.values(), strict=True):
            weight.grad = gradient.clone()
        adam.step()
        own.step(gradients, 0.01)
    for mine, theirs in zip(weights.values(), reference, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-6)


def test_state_goes_on_after_loading() -> None:
    model = network()
    first, second = weights_of(model), weights_of(model)
    generator = torch.Generator().manual_seed(3)
    steps = [{name: torch.randn(w.shape, generator=generator) for name, w in first.items()} for _ in range(4)]
    whole = Optimizer(model.config, first, muon=True, decay=0.1)
    for gradients in steps:
        whole.step(dict(gradients), 0.01)
    part = Optimizer(model.config, second, muon=True, decay=0.1)
    for gradients in steps[:2]:
        part.step(dict(gradients), 0.01)
    other = Optimizer(model.config, second, muon=True, decay=0.1)
    other.load_state_dict(part.state_dict())
    for gradients in steps[2:]:
        other.step(dict(gradients), 0.01)
    for a, b in zip(first.values(), second.values(), strict=True):
        assert torch.equal(a, b)
