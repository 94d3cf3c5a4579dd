"""Models to measure: any that can be loaded, and random weights of the lab model's shape."""

from __future__ import annotations

import torch

from dapd.errors import DapdError
from dapd.generation import default_device, load
from dapd.lab.checkpoint import network_config
from dapd.lab.settings import TrainSettings
from dapd.lab.tokenizer import LabTokenizer
from dapd.models import Transformer, random
from dapd.models.fp8 import to_fp8
from dapd.models.loading import LAB

LAB_SHAPE = "random:lab"


def checked_device(name: str | None) -> torch.device:
    """The device of that name; None: a GPU if there is one."""
    try:
        device = torch.device(name or default_device())
    except RuntimeError:
        raise DapdError(f"unknown device {name!r}; allowed: cpu, cuda, cuda:1 and so on") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise DapdError(f"device {name} was asked for, but torch finds no CUDA device; use --device cpu")
    return device


def bench_model(name: str, device: torch.device, dtype: torch.dtype | None, *, fp8: bool = False) -> Transformer:
    """The network of that name."""
    if name == LAB_SHAPE:
        config = network_config(TrainSettings(), LabTokenizer.build())
        chosen = dtype or (torch.float32 if device.type == "cpu" and not fp8 else torch.bfloat16)
        shape = random(config, device=device, dtype=chosen, sharpness=8.0)
        return to_fp8(shape) if fp8 else shape
    network = load(name, device=device, dtype=dtype, fp8=fp8).network
    if not isinstance(network, Transformer):
        raise DapdError(f"{name} is a {type(network).__name__}; benchmarks know the shape of LLaDA and Dream alone")
    return network


def lab_name() -> str:
    """The lab model, or its shape where this version ships none."""
    return "lab" if (LAB / "config.json").is_file() else LAB_SHAPE
