"""Models by name, with their tokenizers: `lab`, `random:SHAPE`, a checkpoint folder, or a hub id."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from dapd.errors import DapdError
from dapd.models.base import MaskedLM
from dapd.models.devices import default_dtype, pick_device
from dapd.models.fp8 import check_fp8, to_fp8
from dapd.models.loading import is_masked_lm, load_network, random, resolve
from dapd.models.masked_lm import load_masked_lm
from dapd.models.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer
from dapd.models.transformer import TransformerConfig

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

ANY_TEXT = "lab:any-text"


@dataclass(frozen=True)
class LoadedModel:
    """A network, its tokenizer (or a function that reads it when it is needed), and its name in tables and traces."""

    network: MaskedLM
    tokenizer: Tokenizer | Callable[[], Tokenizer | None] | None
    name: str


def open_model(
    source: str | Path,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    revision: str | None = None,
    mask_id: int | None = None,
    eot_id: int | None = None,
    fp8: bool = False,
    tensor_parallel: bool = False,
) -> LoadedModel:
    """The model that a name stands for; see `dapd.load`."""
    chosen = pick_device(device)
    name = str(source)
    mesh = None
    if tensor_parallel:
        if fp8:
            raise DapdError("fp8 layers cannot be divided among processes; give either fp8 or tensor parallelism")
        from dapd.models.parallel import join  # DTensor takes half a second to import

        mesh, chosen = join(chosen)
    if fp8:
        check_fp8(chosen, dtype)
        dtype = torch.bfloat16
    shown = f"{name} (fp8)" if fp8 else name  # an approximation is named as one
    if name.startswith("random:"):
        model = random_model(name.removeprefix("random:"), device=chosen, dtype=dtype, fp8=fp8, mesh=mesh)
        return LoadedModel(model.network, model.tokenizer, shown)
    folder = resolve("lab" if name == ANY_TEXT else source, revision)
    if is_masked_lm(folder):
        if fp8 or tensor_parallel:
            what = "fp8" if fp8 else "tensor parallelism"
            raise DapdError(f"{what} is for LLaDA and Dream models; {name} is a masked language model of transformers")
        return LoadedModel(*load_masked_lm(folder, device=chosen, dtype=dtype, mask_id=mask_id), name)
    network = load_network(folder, device=chosen, dtype=dtype, mask_id=mask_id, eot_id=eot_id, mesh=mesh)
    network = to_fp8(network) if fp8 else network
    return LoadedModel(network, partial(load_tokenizer, folder, network.profile, lenient=name == ANY_TEXT), shown)


def random_model(
    shape: str | TransformerConfig,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    seed: int = 0,
    sharpness: float = 8.0,
    fp8: bool = False,
    mesh: DeviceMesh | None = None,
) -> LoadedModel:
    """A model with random weights that reads and writes bytes."""
    chosen = pick_device(device)
    network = random(
        shape, device=chosen, dtype=dtype or default_dtype(chosen), seed=seed, sharpness=sharpness, mesh=mesh
    )
    name = f"random:{shape}" if isinstance(shape, str) else "random"
    return LoadedModel(to_fp8(network) if fp8 else network, ByteTokenizer(network.profile), name)
