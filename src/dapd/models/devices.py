"""Devices and dtypes by name."""

from __future__ import annotations

import torch

from dapd.errors import DapdError, unknown

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def pick_device(name: str | torch.device | None = None) -> torch.device:
    """A device by name, if there is one of that name; None or "auto": a GPU if there is one."""
    if name is None or name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise DapdError(f"unknown device {str(name)!r}; allowed: cpu, cuda, cuda:1, ...") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise DapdError(f"device is {name}, but this torch sees no CUDA GPU; give cpu, or install torch for CUDA")
    return device


def pick_dtype(name: str | None) -> torch.dtype | None:
    """A dtype by name; None: the default of the device."""
    if name is not None and name not in DTYPES:
        raise unknown("dtype", name, DTYPES)
    return None if name is None else DTYPES[name]


def default_dtype(device: torch.device | str) -> torch.dtype:
    """float32 on a CPU, bfloat16 on an accelerator."""
    return torch.float32 if torch.device(device).type == "cpu" else torch.bfloat16
