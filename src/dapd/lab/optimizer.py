"""The optimizer of the lab: Muon for the matrices inside the layers, AdamW for embeddings, head and norms.

Muon moves a matrix along the nearest orthogonal matrix to its momentum, so that rare directions of the gradient count
as much as common ones. All matrices of one shape are orthogonalised together, in a few batched products: one by one the
launches would cost more than the arithmetic. Its steps are scaled to the size of AdamW's, and one learning rate serves
both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dapd.models.transformer import TransformerConfig, unfused

MOMENTUM = 0.95
BETAS = (0.9, 0.98)

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic polynomial that drives all singular values towards 1."""

ROUNDS = 5
"""How often the quintic is applied."""

UPDATE_SIZE = 0.2
"""Root mean square of the entries of an update, as a fraction of the learning rate: the size that AdamW's updates have
in the long run. Twice as much, at twice the learning rate, made attention choose one column alone: its scores had a
standard deviation of 20 to 40, where AdamW's have 2 to 5. Tasks that must weigh several columns, such as a list without
repetition, were then not learned."""


def orthogonal(matrices: Tensor) -> Tensor:
    """The nearest (semi-)orthogonal matrices, roughly: singular values end between 0.7 and 1.2."""
    a, b, c = COEFFICIENTS
    x: Tensor = matrices.bfloat16() if matrices.is_cuda else matrices
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(ROUNDS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return (x.mT if tall else x).to(matrices.dtype)


class Optimizer:
    """Muon and AdamW in one `step`. `weights` are keyed by the network's parameter names and changed in place."""

    def __init__(self, config: TransformerConfig, weights: Mapping[str, Tensor], *, muon: bool, decay: float) -> None:
        self.config = config
        self.weights = dict(weights)
        self.decay = decay
        inner = {name for name, weight in weights.items() if muon and name.startswith("layers.") and weight.ndim == 2}
        self.inner = {name: weight for name, weight in weights.items() if name in inner}
        self.momentum = {name: torch.zeros_like(weight) for name, weight in self.inner.items()}
        rest = [weight for name, weight in weights.items() if name not in inner]
        groups = [
            {"params": [weight for weight in rest if weight.ndim > 1], "weight_decay": decay},
            {"params": [weight for weight in rest if weight.ndim == 1], "weight_decay": 0.0},
        ]
        fused = all(weight.is_cuda for weight in rest)
        self.adam = torch.optim.AdamW(groups, lr=0.0, betas=BETAS, fused=fused)

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Tensor], lr: float) -> None:
        """Update all weights by their gradients, which are fp32."""
        for name, weight in self.weights.items():
            weight.grad = None if name in self.inner else gradients[name]
        for group in self.adam.param_groups:
            group["lr"] = lr
        self.adam.step()
        if self.inner:
            self._muon({name: gradients[name] for name in self.inner}, lr)

    def _muon(self, gradients: Mapping[str, Tensor], lr: float) -> None:
        """Update the matrices inside the layers with Muon; each part of a fused matrix counts as one matrix."""
        names = list(self.inner)
        slow = [self.momentum[name] for name in names]
        fast = [gradients[name] for name in names]
        torch._foreach_lerp_(slow, fast, 1 - MOMENTUM)
        # Nesterov: the momentum as it would be after one more gradient like this.
        ahead = torch._foreach_lerp(fast, slow, MOMENTUM)
        torch._foreach_mul_(list(self.inner.values()), 1 - lr * self.decay)
        steps = unfused(self.config, dict(zip(names, ahead, strict=True)))
        moved = unfused(self.config, self.inner)
        for alike in _by_shape(steps):
            turned = orthogonal(torch.stack([steps[name] for name in alike]))
            size = UPDATE_SIZE * max(turned.shape[-2:]) ** 0.5
            torch._foreach_add_([moved[name] for name in alike], list(turned.unbind()), alpha=-lr * size)

    def state_dict(self) -> dict[str, Any]:
        return {"momentum": self.momentum, "adam": self.adam.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.momentum = {name: state["momentum"][name].to(weight.device) for name, weight in self.inner.items()}
        self.adam.load_state_dict(state["adam"])


def _by_shape(tensors: Mapping[str, Tensor]) -> list[Sequence[str]]:
    """The names of the tensors, grouped by shape."""
    groups: dict[torch.Size, list[str]] = {}
    for name, tensor in tensors.items():
        groups.setdefault(tensor.shape, []).append(name)
    return list(groups.values())
