"""Networks by name: from a checkpoint folder, from a hub id, or of a shape with random weights."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dapd.errors import DapdError, first_line, missing_extra, unknown
from dapd.models import dream, llada
from dapd.models.base import Profile
from dapd.models.checkpoint import (
    Part,
    TensorNames,
    added_token,
    architectures_of,
    check_layers,
    check_plain,
    check_weights,
    load_weights,
    read_json,
    stored_tensors,
)
from dapd.models.devices import default_dtype
from dapd.models.transformer import Transformer, TransformerConfig

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class Architecture:
    """A family of checkpoints that this package can read."""

    name: str
    parse: Callable[[dict[str, Any], int | None, int | None], TransformerConfig]
    """Config, mask id, end-of-turn id -> shape; the ids stand in for those of the config where they are given."""
    names: TensorNames
    hub_ids: tuple[str, ...]
    """Released checkpoints of this family."""
    filler: str | None = None
    """A token that takes the place of the config's EOS in those checkpoints whose tokenizer has it."""


# Dispatch is on `architectures`, not on `model_type`: other models share the type string and compute something else.
ARCHITECTURES = {
    "LLaDAModelLM": Architecture(
        "LLaDA",
        llada.parse,
        llada.NAMES,
        ("GSAI-ML/LLaDA-8B-Base", "GSAI-ML/LLaDA-8B-Instruct", "GSAI-ML/LLaDA-1.5"),
    ),
    "DreamModel": Architecture(
        "Dream",
        dream.parse,
        dream.NAMES,
        (
            "Dream-org/Dream-v0-Base-7B",
            "Dream-org/Dream-v0-Instruct-7B",
            "Dream-org/Dream-Coder-v0-Instruct-7B",
            "apple/DiffuCoder-7B-Instruct",
        ),
        dream.FILLER,
    ),
}

LAB = Path(__file__).parent.parent / "lab" / "weights"
"""The small trained model that ships inside the package: an ordinary LLaDA checkpoint."""

_TINY = Profile(mask_id=257, eos_id=256, pad_id=256, eot_id=259, bos_id=258)

SHAPES = {
    "llada-8b": TransformerConfig(
        n_layers=32,
        d_model=4096,
        n_heads=32,
        n_kv_heads=32,
        d_mlp=12288,
        vocab_size=126464,
        max_length=4096,
        rope_theta=500000.0,
        profile=Profile(mask_id=126336, eos_id=126081, pad_id=126081, eot_id=126348, bos_id=126080),
    ),
    "dream-7b": TransformerConfig(
        n_layers=28,
        d_model=3584,
        n_heads=28,
        n_kv_heads=4,
        d_mlp=18944,
        vocab_size=152064,
        max_length=131072,
        rope_theta=1e6,
        norm_eps=1e-6,
        qkv_bias=True,
        rope_fp32=False,
        lookback=1,
        profile=Profile(mask_id=151666, eos_id=151643, pad_id=151643, eot_id=151645, bos_id=151643),
    ),
    "tiny-llada": TransformerConfig(
        n_layers=4, d_model=64, n_heads=4, n_kv_heads=4, d_mlp=128, vocab_size=264, max_length=1024, profile=_TINY
    ),
    "tiny-dream": TransformerConfig(
        n_layers=4,
        d_model=64,
        n_heads=4,
        n_kv_heads=2,
        d_mlp=128,
        vocab_size=264,
        max_length=1024,
        norm_eps=1e-6,
        qkv_bias=True,
        rope_fp32=False,
        lookback=1,
        profile=_TINY,
    ),
}


def random(
    shape: str | TransformerConfig,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    sharpness: float = 1.0,
    mesh: DeviceMesh | None = None,
) -> Transformer:
    """A model of any shape with random weights; `sharpness` scales the head, so that confidences spread over 0..1."""
    if isinstance(shape, str):
        if shape not in SHAPES:
            raise unknown("shape", shape, SHAPES)
        shape = SHAPES[shape]
    network = _allocated(_outline(shape, mesh), device, dtype)
    generator = torch.Generator(device).manual_seed(seed)
    part = network.part or Part()
    weights = network.held(tied_twice=True)
    # Part by part, and a tied head again after its embedding: the numbers do not depend on what is fused or divided.
    for name, outline in _outline(shape).held(tied_twice=True).items():
        if "norm" in name:
            nn.init.ones_(weights[name])
        elif name.endswith("weight"):
            # Unit gain whatever the width: attention and predictions then vary from position to position.
            std = 1.0 if name == "embed.weight" else outline.shape[1] ** -0.5
            _draw(weights[name], outline.shape, part, std, generator)
            bias = name.removesuffix("weight") + "bias"
            if bias in weights:
                _draw(weights[bias], outline.shape[:1], part, 0.02, generator)
    with torch.no_grad():
        weights["head.weight"].mul_(sharpness)
    return network.eval().requires_grad_(False)


@torch.no_grad()
def _draw(weight: Tensor, shape: torch.Size, part: Part, std: float, generator: torch.Generator) -> None:
    """Fill a tensor with its part of normal random numbers that are drawn for the whole shape."""
    whole = torch.empty(shape, device=weight.device, dtype=weight.dtype).normal_(std=std, generator=generator)
    weight.copy_(whole[part.of(shape, weight.shape)])


def _outline(shape: TransformerConfig, mesh: DeviceMesh | None = None) -> Transformer:
    """A network whose tensors have shapes but no memory. With a mesh it is this process's part."""
    with torch.device("meta"):
        if mesh is None:
            return Transformer(shape)
        from dapd.models.parallel import ShardedTransformer

        return ShardedTransformer(shape, mesh)


def _allocated(network: Transformer, device: torch.device | str, dtype: torch.dtype) -> Transformer:
    """The network with memory for its weights, which is yet to be filled."""
    try:
        # What to_empty() does, without its empty_like(), which imports sympy for tensors that have no memory yet.
        network = network.to(dtype)
        network._apply(lambda outline: outline.new_empty(outline.shape, device=device))  # type: ignore[no-untyped-call]
    except (RuntimeError, MemoryError) as error:
        raise DapdError(f"there is no room for this network on {device}: {first_line(error)}") from None
    if network.config.tied:
        network.head.weight = network.embed.weight
    return network


def resolve(source: str | Path, revision: str | None = None) -> Path:
    """The local folder of a checkpoint: the shipped model, the folder itself, or the download of a hub id."""
    if str(source) == "lab":
        if not (LAB / "config.json").is_file():
            raise DapdError(f"the lab model is missing from this installation ({LAB}): install dapd again")
        return LAB
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists():
        raise DapdError(f"{folder} is a file; a model is a folder with config.json and safetensors weights")
    known = [name for a in ARCHITECTURES.values() for name in a.hub_ids]
    candidates = ["lab", "lab:any-text", *known]
    near = difflib.get_close_matches(str(source), [*candidates, *(name.split("/")[1] for name in known)], n=1)
    other = [name for name in candidates if near and name.endswith(near[0]) and name != str(source)]
    hint = "".join(f"; did you mean {name!r}?" for name in other)
    parts = str(source).split("/")
    if len(parts) != 2 or not all(parts) or parts[0] in (".", "..", "~"):
        raise DapdError(
            f"unknown model {str(source)!r}: no such folder{hint or ';'} give lab or lab:any-text (both ship), a "
            f"checkpoint folder, a hub id such as {known[1]}, or random:SHAPE ({', '.join(SHAPES)})"
        )
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise missing_extra("huggingface_hub", "hub", f"downloading {source}") from None
    try:
        patterns = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
        return Path(snapshot_download(str(source), revision=revision, allow_patterns=patterns))
    except Exception as error:  # the hub client has no common base class for its failures
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DapdError(f"cannot get {source} from the hub, and there is no such folder here: {reason}{hint}") from None


def is_masked_lm(folder: Path) -> bool:
    """Whether a folder holds a masked language model of `transformers` rather than one of our own families."""
    path = folder / "config.json"
    return any(name.endswith("ForMaskedLM") for name in architectures_of(read_json(path), path))


def load_network(
    folder: Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    mask_id: int | None = None,
    eot_id: int | None = None,
    mesh: DeviceMesh | None = None,
) -> Transformer:
    """The network of a checkpoint folder. dtype None: bf16 on an accelerator, fp32 on a CPU.

    With a mesh it is this process's part of the network, and no more than that is read.
    """
    config = read_json(folder / "config.json")
    names = architectures_of(config, folder / "config.json")
    name = next((n for n in names if n in ARCHITECTURES), None)
    if name is None:
        raise DapdError(
            f"{folder}: architecture {', '.join(names) or '(none given)'} is not supported; "
            f"supported: {', '.join(ARCHITECTURES)}, and any ...ForMaskedLM of transformers{_advice(config, names)}"
        )
    architecture = ARCHITECTURES[name]
    filler = architecture.filler and added_token(folder, architecture.filler)
    if filler is not None:
        config["eos_token_id"] = filler
    shape = architecture.parse(config, mask_id, eot_id)
    check_plain(folder, config)
    # A checkpoint that does not fit is refused after reading only file headers, before a network of that size is made.
    stored = stored_tensors(folder)
    check_layers(shape.n_layers, stored, folder)
    check_weights(_outline(shape).held(), stored, folder, architecture.names)
    network = _allocated(_outline(shape, mesh), device, dtype or default_dtype(device))
    load_weights(network.held(), folder, architecture.names, device=device, part=network.part)
    return network.eval().requires_grad_(False)


def _advice(config: Mapping[str, Any], names: Sequence[str]) -> str:
    """What to do about a config that names no class with a head for masks, if `transformers` knows its model type."""
    try:
        from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as CLASSES
    except ImportError:
        return ""
    kind = config.get("model_type")
    wanted = CLASSES.get(kind) if isinstance(kind, str) else None
    if wanted is None:
        return ""
    if names:
        return f"; a checkpoint of {wanted} is needed, with the head that predicts masked tokens"
    return f'; if this is a {wanted}, add "architectures": ["{wanted}"] to config.json'
