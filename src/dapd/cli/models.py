"""The options that name a model, in every command that takes one, and the model that they name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Annotated

import torch
import typer
from rich.console import Console

from dapd.generation import DiffusionLM
from dapd.models import MaskedLM
from dapd.models.devices import pick_dtype
from dapd.mrf.network import StackedRADD
from dapd.own_models import load_named

Model = Annotated[
    str,
    typer.Option(
        "--model", "-m", help="lab (ships with dapd), lab:any-text, a folder, a hub id, random:SHAPE, my_file.py:make."
    ),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...; default: a GPU if there is one.")]
Dtype = Annotated[
    str | None, typer.Option(help="float32, bfloat16 or float16; default: bfloat16 on a GPU, else float32.")
]
Fp8 = Annotated[bool, typer.Option("--fp8", help="Use fp8 for linear layers, an approximation (L4, H100, ...).")]

SMALL = 50_000_000
"""A model with fewer parameters counts as small."""


def opened(
    model: str,
    device: str | None = None,
    dtype: str | None = None,
    *,
    fp8: bool = False,
    tensor_parallel: bool = False,
    silent: bool = False,
) -> DiffusionLM:
    """The model that the options name, ready to work."""
    kind = pick_dtype(dtype)
    with nullcontext() if silent else loading(model):
        lm = load_named(model, device=device, dtype=kind, fp8=fp8, tensor_parallel=tensor_parallel)
    calm_threads(lm.network)
    return lm


@contextmanager
def loading(model: str) -> Iterator[None]:
    """Say on a terminal that a model is being read: a large one takes a minute."""
    console = Console(stderr=True)
    with console.status(f"loading {model}") if console.is_terminal else nullcontext():
        yield


def calm_threads(network: MaskedLM | StackedRADD) -> None:
    """Use one thread for a small model on a CPU: several would wait for each other longer than the arithmetic takes."""
    small = sum(p.numel() for p in getattr(network, "parameters", list)()) < SMALL
    if small and network.device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
