"""Run directories: the recipe as JSON, the weights as safetensors, a checkpoint while training lasts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dapd.errors import DapdError
from dapd.io.files import make_folder, parse_json, replacing, write_text
from dapd.mrf.network import StackedRADD
from dapd.mrf.recipe import Recipe, from_json, to_json

SHARD_BYTES = 15 * 2**20
SHIPPED = Path(__file__).parent / "weights"
"""The trained toy model that comes with the package."""
CHECKPOINT = "checkpoint.pt"
"""The file in a run directory from which a training continues."""


@dataclass(frozen=True)
class Run:
    """A finished run."""

    recipe: Recipe
    network: StackedRADD


def open_run(folder: Path, recipe: Recipe) -> None:
    """Make the run directory, or check that it belongs to this recipe."""
    make_folder(folder)
    config = folder / "recipe.json"
    if not config.exists():
        if any(path.name != ".lock" for path in folder.iterdir()):
            raise DapdError(f"{folder} is not empty and holds no recipe.json: give another run directory")
        write_text(config, json.dumps(to_json(recipe), indent=1) + "\n")
        return
    old = from_json(read_json(config))
    if old != recipe:
        asked = recipe.options()
        there = old.options()
        changed = [name for name in asked if there[name] != asked[name]] or ["models"]
        raise DapdError(
            f"{folder} belongs to another configuration (it differs in {', '.join(changed)}): give another folder"
        )


def read_json(path: Path) -> dict[str, Any]:
    try:
        values = parse_json(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DapdError(f"{path} does not exist: this is not a run directory of `dapd mrf train`") from error
    except OSError as error:
        raise DapdError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise DapdError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise DapdError(f"{path} does not hold a JSON object")
    return values


def is_finished(folder: Path) -> bool:
    return bool(sorted(folder.glob("weights-*.safetensors"))) and not (folder / CHECKPOINT).exists()


def save_weights(folder: Path, weights: dict[str, Tensor], dtype: torch.dtype = torch.float32) -> list[Path]:
    """The stack in shards of whole models, none larger than `SHARD_BYTES`."""
    n_models = next(iter(weights.values())).shape[0]
    per_model = sum(w[0].numel() for w in weights.values()) * dtype.itemsize
    group = max(1, SHARD_BYTES // per_model)
    paths = []
    for first in range(0, n_models, group):
        shard = {name: w[first : first + group].detach().to("cpu", dtype).contiguous() for name, w in weights.items()}
        path = folder / f"weights-{first:03d}.safetensors"
        with replacing(path) as draft:
            save_file(shard, draft)
        paths.append(path)
    return paths


def load_run(folder: Path, n_models: int | None = None, device: torch.device | str = "cpu") -> Run:
    """The recipe and the trained stack, or its first `n_models`; strict about every name and shape."""
    recipe = from_json(read_json(folder / "recipe.json"))
    shards = sorted(folder.glob("weights-*.safetensors"))
    if not shards:
        hint = "its training has not finished: run `dapd mrf train` again" if (folder / CHECKPOINT).exists() else ""
        raise DapdError(f"{folder} holds no weights; {hint or 'this is not a run directory of `dapd mrf train`'}")
    try:
        parts = [load_file(shard) for shard in shards]
    except SafetensorError as error:
        raise DapdError(f"{folder} holds a damaged weights file: {error}") from error
    network = StackedRADD(recipe.n_models, recipe.shape)
    expected = network.state_dict()
    if any(part.keys() != expected.keys() for part in parts):
        raise DapdError(f"the weights in {folder} are not a toy network's")
    weights = {name: torch.cat([part[name].float() for part in parts]) for name in expected}
    for name, tensor in weights.items():
        if tensor.shape != expected[name].shape:
            shapes = f"{tuple(tensor.shape)}, recipe.json asks for {tuple(expected[name].shape)}"
            raise DapdError(f"the weights in {folder} are of another shape: {name} is {shapes}")
    network.load_state_dict(weights)
    return Run(recipe, network.to(device).pick(slice(0, n_models)))


def hardware(device: str) -> dict[str, str]:
    """The device and the version of torch that computed the numbers."""
    name = torch.cuda.get_device_name() if device.startswith("cuda") else "CPU, one thread per core in use"
    return {"device": name, "torch": torch.__version__}
