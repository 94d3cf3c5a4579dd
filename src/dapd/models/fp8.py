"""Linear layers in fp8: an approximation with half the bytes and twice the rate of bf16."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dapd.errors import DapdError
from dapd.kernels.fp8 import Quantised, product, quantise
from dapd.models.transformer import Layer, Transformer

PROJECTIONS = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
"""The projections of a layer that are quantised. Embedding, norms and head keep their precision."""


class Fp8Linear(nn.Module):
    """A linear layer in fp8 with a scale for each output, and one for each token of its input."""

    weight: Tensor
    scale: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = quantise(linear.weight.detach())
        self.register_buffer("weight", weight.value)
        self.register_buffer("scale", weight.scale)
        self.bias = linear.bias

    def forward(self, x: Float[Tensor, "*b k"]) -> Float[Tensor, "*b m"]:
        out = product(quantise(x.flatten(0, -2)), Quantised(self.weight, self.scale), x.dtype)
        out = out.view(*x.shape[:-1], -1)
        return out if self.bias is None else out + self.bias


def has_fp8(device: torch.device) -> bool:
    """Whether the device multiplies in fp8."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def is_fp8(network: object) -> bool:
    """Whether the layers of a network are quantised."""
    return isinstance(network, nn.Module) and any(isinstance(module, Fp8Linear) for module in network.modules())


def check_fp8(device: torch.device, dtype: torch.dtype | None) -> None:
    """Refuse a device without fp8 and a dtype other than bf16; None stands for bf16."""
    if not has_fp8(device):
        raise DapdError(
            "fp8 needs an NVIDIA GPU of compute capability 8.9 or later (L4, L40S, H100, H200, ...); "
            f"the device is {device}"
        )
    if dtype not in (None, torch.bfloat16):
        raise DapdError(f"fp8 layers belong in a bfloat16 network, not one in {dtype}")


def to_fp8(network: Transformer) -> Transformer:
    """Quantise the layers of a network, in place; it must be a bf16 one on a GPU that has fp8."""
    check_fp8(network.device, network.dtype)
    if network.config.d_model % 16 or network.config.d_mlp % 16:
        raise DapdError("fp8 needs a d_model and a d_mlp that are multiples of 16")
    return quantised(network)


def quantised(network: Transformer) -> Transformer:
    """Replace the linear layers by fp8 ones, one by one, so that memory never holds both networks."""
    for layer in network.layers:
        assert isinstance(layer, Layer)
        for name in PROJECTIONS:
            setattr(layer, name, Fp8Linear(getattr(layer, name)))
    return network
