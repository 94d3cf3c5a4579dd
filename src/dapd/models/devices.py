"""Devices and dtypes by name."""

from __future__ import annotations

import torch

from dapd.errors import DapdError, first_line, unknown

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def pick_device(name: str | torch.device | None = None) -> torch.device:
    """A device by name, if there is one of that name; None or "auto": a GPU if there is one."""
    if name is None or name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise DapdError(f"unknown device {str(name)!r}; allowed: cpu, cuda, cuda:1, ...") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise DapdError(f"device is {name}, but this torch sees no CUDA GPU; give cpu, or install torch for CUDA")
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise DapdError(f"device is {name}, but there are {count} GPUs here, counted from cuda:0")
    elif device.type != "cpu":
        try:
            torch.ones(1, device=device).cpu()
        except Exception as error:  # every kind of device that is not there fails in its own way
            reason = first_line(error).partition(". ")[0]
            raise DapdError(f"device is {name}, which cannot be used here ({reason}); give cpu") from None
    return device


def pick_dtype(name: str | None) -> torch.dtype | None:
    """A dtype by name; None: the default of the device."""
    if name is not None and name not in DTYPES:
        raise unknown("dtype", name, DTYPES)
    return None if name is None else DTYPES[name]


def default_dtype(device: torch.device | str) -> torch.dtype:
    """float32 on a CPU, bfloat16 on an accelerator."""
    return torch.float32 if torch.device(device).type == "cpu" else torch.bfloat16
