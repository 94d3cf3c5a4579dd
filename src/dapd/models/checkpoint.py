"""Weights from safetensors files, strictly: every tensor there, every tensor known, every shape right."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dapd.errors import DapdError

INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class TensorNames:
    """How a family of checkpoints names the parts of the shared body."""

    embed: str
    norm: str
    head: str
    layer: str
    """Prefix of a layer, with `{}` for its number."""
    parts: Mapping[str, str]
    """Our name of a part of a layer -> theirs."""

    def of(self, ours: str) -> str:
        """The checkpoint's name of one of our parameters, such as `layers.3.q_proj.weight`."""
        head, *rest = ours.split(".")
        if head == "layers":
            number, part, kind = rest
            return f"{self.layer.format(number)}.{self.parts[part]}.{kind}"
        return f"{ {'embed': self.embed, 'norm': self.norm, 'head': self.head}[head] }.{rest[0]}"


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DapdError(f"{path.parent} has no {path.name}: not a checkpoint folder") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DapdError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise DapdError(f"{path} does not hold a JSON object")
    return content


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint: the shards of its index, or the one file."""
    if (folder / INDEX).is_file():
        index = read_json(folder / INDEX)
        if not isinstance(index.get("weight_map"), dict):
            raise DapdError(f"{folder / INDEX} has no weight_map")
        files = [folder / name for name in sorted(set(index["weight_map"].values()))]
        absent = [file.name for file in files if not file.is_file()]
        if absent:
            raise DapdError(f"{folder}: the index lists shards that are not there: {', '.join(absent)}")
        return files
    files = sorted(folder.glob("*.safetensors"))
    if len(files) == 1:
        return files
    if files:
        raise DapdError(
            f"{folder} has {len(files)} safetensors files but no {INDEX} that says how they belong together"
        )
    pickles = sorted(p.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for p in folder.glob(pattern))
    if pickles:
        raise DapdError(
            f"{folder} has its weights as pickles only ({', '.join(pickles[:3])}), which can run code when opened; "
            "dapd reads safetensors: convert them first"
        )
    raise DapdError(f"{folder} has no safetensors weights")


@torch.no_grad()
def load_weights(
    tensors: Mapping[str, Tensor], folder: Path, names: TensorNames, *, device: torch.device | str
) -> None:
    """Fill `tensors` (by our names) from the files of `folder`; nothing is left out, nothing is guessed."""
    places = {names.of(name): tensor for name, tensor in tensors.items()}
    filled: set[str] = set()
    extra: list[str] = []
    for file in weight_files(folder):
        for name, tensor in _tensors(file, str(device)):
            if name not in places:
                extra.append(name)
                continue
            if name in filled:
                raise DapdError(f"{folder}: tensor {name} stands in more than one file")
            shape, wanted = list(tensor.shape), list(places[name].shape)
            if shape != wanted:
                raise DapdError(f"{file}: tensor {name} has shape {shape}, the config asks for {wanted}")
            places[name].copy_(tensor)
            filled.add(name)
    # A tied head may be written out a second time: it is the embedding, whatever the file calls it.
    extra = [name for name in extra if not (name == names.of("head.weight") and "head.weight" not in tensors)]
    missing = [name for name in places if name not in filled]
    if missing or extra:
        raise DapdError(f"{folder} does not fit its config.json:{_some('missing', missing)}{_some('unknown', extra)}")


def _some(kind: str, names: list[str]) -> str:
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f" {kind} tensors: {shown};" if names else ""


def _tensors(file: Path, device: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a file, one at a time: beside the network no more than one of them is in memory."""
    try:
        with safe_open(file, framework="pt", device=device) as content:
            for name in content.keys():  # noqa: SIM118 (not a mapping)
                yield name, content.get_tensor(name)
    except SafetensorError as error:
        raise DapdError(f"{file} cannot be read, it may be truncated: {error}") from None
