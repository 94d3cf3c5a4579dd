"""Weights from safetensors files, read strictly: no tensor may be missing, unknown or of the wrong shape."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dapd.errors import DapdError, reason
from dapd.io.files import parse_json

INDEX = "model.safetensors.index.json"

POINTER = b"version https://git-lfs"
"""The beginning of a file that was cloned without Git LFS."""


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


@dataclass(frozen=True)
class Stored:
    """A tensor as a file's header describes it: nothing of it is in memory yet."""

    file: Path
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Part:
    """The part of every tensor that a process holds: number `rank` of `size` equal ones."""

    rank: int = 0
    size: int = 1

    def of(self, whole: Sequence[int], mine: Sequence[int]) -> tuple[slice, ...]:
        """Where a part of shape `mine` lies in a tensor of shape `whole`: it is divided where the part is shorter."""
        starts = (0 if n == m else self.rank * -(-n // self.size) for n, m in zip(whole, mine, strict=True))
        return tuple(slice(start, start + m) for start, m in zip(starts, mine, strict=True))


WEIGHT_TYPES = ("F64", "F32", "F16", "BF16")
"""The dtypes that weights may have. Data of other dtypes (whole numbers, eight-bit floats without their scales) stand
for numbers that only the program which wrote them can restore."""


def read_json(path: Path) -> dict[str, Any]:
    """The object of a JSON file of a checkpoint."""
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DapdError(f"{path.parent} has no {path.name}: not a checkpoint folder") from None
    except OSError as error:
        raise DapdError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise DapdError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise DapdError(f"{path} does not hold a JSON object")
    return content


def architectures_of(config: Mapping[str, Any], path: Path) -> list[str]:
    """The names under `architectures`, which may be missing."""
    names = config.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DapdError(f"{path}: architectures is {names!r}; it must be a list of names")
    return names


def number(config: Mapping[str, Any], key: str, default: float) -> float:
    """A finite number above 0 from a config: Python's JSON reader lets NaN and Infinity through."""
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise DapdError(f"{key} is {value!r}; it must be a finite number above 0")
    return float(value)


def rope_theta(config: Mapping[str, Any]) -> float:
    """The base of the rotary embedding, which newer versions of `transformers` write under `rope_parameters`. Scaled
    rotations are refused, whichever entry of the config asks for them."""
    places = [config]
    for key in ("rope_scaling", "rope_parameters"):
        nested = config.get(key) or {}
        plain = ("default", None, 1.0)  # a factor of 1 changes nothing
        if not isinstance(nested, dict) or any(nested[name] not in plain for name in nested if name != "rope_theta"):
            raise DapdError(f"{key} is {nested!r}; only a rope_theta and rope_type 'default' are supported in it")
        places.append(nested)
    given = [number(place, "rope_theta", 0) for place in places if place.get("rope_theta") is not None]
    if len(set(given)) > 1:
        raise DapdError(f"the config gives several values of rope_theta, {given}; they must agree")
    return given[0] if given else number(config, "rope_theta", 10000.0)


def added_token(folder: Path, content: str) -> int | None:
    """The id of a token that a checkpoint folder adds to its tokenizer's vocabulary; None: it adds no such token."""
    path = folder / "tokenizer_config.json"
    added = read_json(path).get("added_tokens_decoder") if path.is_file() else None
    if not isinstance(added, dict):
        return None
    named = (key for key, token in added.items() if isinstance(token, dict) and token.get("content") == content)
    return next((int(key) for key in named if key.isdecimal()), None)


def check_plain(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse a folder whose network is not made of its plain weights alone, or that holds two sets of them."""
    for key in ("quantization_config", "transformers_weights"):
        if config.get(key):
            raise DapdError(f"{folder}: config.json has {key}; only plain weights in model.safetensors are read")
    if (folder / "adapter_config.json").exists():
        raise DapdError(f"{folder} holds an adapter, which is not added to the weights: merge it into its model first")
    if (folder / INDEX).is_file() and (folder / "model.safetensors").is_file():
        raise DapdError(f"{folder} has both model.safetensors and {INDEX}: remove the one that is not in use")


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint: the shards of its index, or the one file."""
    if (folder / INDEX).is_file():
        files = [folder / name for name in _shards(folder / INDEX)]
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
            "dapd reads safetensors: convert them first, where you trust them, by loading the model with the library "
            "that wrote them and saving it again (in transformers: from_pretrained, then save_pretrained)"
        )
    raise DapdError(f"{folder} has no safetensors weights")


def _shards(index: Path) -> list[str]:
    """The names of the files that an index lists. They lie in its folder: a path to elsewhere is refused."""
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise DapdError(f"{index} has no weight_map")
    for tensor, name in places.items():
        plain = isinstance(name, str) and name.endswith(".safetensors") and Path(name).name == name and "\\" not in name
        if not plain:
            raise DapdError(
                f"{index}: {tensor} is said to be in {name!r}; a shard must be the name of a .safetensors file in the "
                "same folder"
            )
    return sorted(set(places.values()))


def stored_tensors(folder: Path) -> dict[str, Stored]:
    """All tensors of a checkpoint by their names, from the headers of its files."""
    out: dict[str, Stored] = {}
    for file in weight_files(folder):
        with _opened(file, "cpu") as content:
            for name in content.keys():  # noqa: SIM118 (not a mapping)
                if name in out:
                    raise DapdError(f"{folder}: tensor {name} is in more than one file")
                part = content.get_slice(name)
                out[name] = Stored(file, str(part.get_dtype()), tuple(part.get_shape()))
    return out


def check_layers(n_layers: int, stored: Mapping[str, Stored], folder: Path) -> None:
    """Refuse a config that asks for more layers than there are tensors at all, before any layer is built."""
    if n_layers > len(stored):
        raise DapdError(
            f"{folder}: config.json asks for {n_layers} layers, but the weights hold {len(stored)} tensors in all"
        )


def check_types(stored: Mapping[str, Stored]) -> None:
    """Refuse weights of a dtype that is not among WEIGHT_TYPES."""
    for name, one in stored.items():
        if one.dtype not in WEIGHT_TYPES:
            raise DapdError(
                f"{one.file}: tensor {name} is of type {one.dtype}; weights are {', '.join(WEIGHT_TYPES)}: a quantised "
                "checkpoint must be converted back first"
            )


def check_weights(
    tensors: Mapping[str, Tensor], stored: Mapping[str, Stored], folder: Path, names: TensorNames
) -> None:
    """Refuse a checkpoint that is not exactly what its config asks for: nothing is left out, nothing is guessed."""
    places = {names.of(name): tensor for name, tensor in tensors.items()}
    for name, tensor in places.items():
        if name in stored and stored[name].shape != tuple(tensor.shape):
            has = list(stored[name].shape)
            wants = list(tensor.shape)
            raise DapdError(f"{stored[name].file}: tensor {name} has shape {has}, the config asks for {wants}")
    # A tied head may be written out a second time: it is the embedding, whatever the file calls it.
    tied = "head.weight" not in tensors
    extra = [name for name in stored if name not in places and not (tied and name == names.of("head.weight"))]
    missing = [name for name in places if name not in stored]
    if missing or extra:
        raise DapdError(f"{folder} does not fit its config.json:{_some('missing', missing)}{_some('unknown', extra)}")
    check_types({name: one for name, one in stored.items() if name in places})


@torch.no_grad()
def load_weights(
    tensors: Mapping[str, Tensor],
    folder: Path,
    names: TensorNames,
    *,
    device: torch.device | str,
    part: Part | None = None,
) -> None:
    """Fill `tensors` (by our names) from the files of `folder`, which `check_weights` has found to fit.

    With a `part` only that part of each stored tensor is read. Where the config says that the head is the embedding, a
    head that is stored as well must be equal to it.
    """
    places = {names.of(name): tensor for name, tensor in tensors.items()}
    head = names.of("head.weight")
    again: Tensor | None = None
    for file in weight_files(folder):
        with _opened(file, str(device)) as content:
            for name in content.keys():  # noqa: SIM118 (not a mapping)
                if name in places:  # one at a time: memory holds the network and one more tensor
                    places[name].copy_(_read(content, name, places[name], part))
                elif name == head:
                    again = _read(content, name, tensors["embed.weight"], part)
    if again is not None and not torch.equal(again.to(tensors["embed.weight"]), tensors["embed.weight"]):
        raise DapdError(
            f"{folder}: by its config.json the head is the embedding, but {head} holds something else: set "
            "weight_tying or tie_word_embeddings to false there, or remove that tensor"
        )


def _read(content: Any, name: str, place: Tensor, part: Part | None) -> Tensor:
    if part is None:
        whole: Tensor = content.get_tensor(name)
        return whole
    stored = content.get_slice(name)
    mine: Tensor = stored[part.of(stored.get_shape(), place.shape)]
    return mine


def _some(kind: str, names: list[str]) -> str:
    return f" {kind} tensors: {some(names)};" if names else ""


def some(names: list[str]) -> str:
    """The first five of some names, and how many more there are."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


@contextmanager
def _opened(file: Path, device: str) -> Iterator[Any]:
    try:
        with safe_open(file, framework="pt", device=device) as content:
            yield content
    except SafetensorError as error:
        with file.open("rb") as start:
            if start.read(len(POINTER)) == POINTER:
                raise DapdError(f"{file} is a pointer of Git LFS, not the weights: run `git lfs pull` there") from None
        raise DapdError(f"{file} cannot be read, it may be truncated: {error}") from None
    except OSError as error:
        raise DapdError(f"cannot read {file}: {reason(error)}") from None
