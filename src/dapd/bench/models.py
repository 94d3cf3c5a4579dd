"""Models to measure: any that can be loaded, and random weights of the lab model's shape."""

from __future__ import annotations

import torch

from dapd.errors import DapdError
from dapd.lab.checkpoint import network_config
from dapd.lab.settings import TrainSettings
from dapd.lab.tokenizer import LabTokenizer
from dapd.models import Transformer, random
from dapd.models.fp8 import to_fp8
from dapd.own_models import load_named

LAB_SHAPE = "random:lab"


def bench_model(name: str, device: torch.device, dtype: torch.dtype | None, *, fp8: bool = False) -> Transformer:
    """The network of that name."""
    if name == LAB_SHAPE:
        config = network_config(TrainSettings(), LabTokenizer.build())
        chosen = dtype or (torch.float32 if device.type == "cpu" and not fp8 else torch.bfloat16)
        shape = random(config, device=device, dtype=chosen, sharpness=8.0)
        return to_fp8(shape) if fp8 else shape
    network = load_named(name, device=device, dtype=dtype, fp8=fp8).network
    if not isinstance(network, Transformer):
        raise DapdError(f"{name} is a {type(network).__name__}; benchmarks support only LLaDA and Dream networks")
    return network
