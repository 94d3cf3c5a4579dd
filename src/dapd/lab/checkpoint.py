"""The lab model as a LLaDA checkpoint: config.json, bf16 safetensors under LLaDA's names, tokenizer files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from dapd.errors import DapdError
from dapd.io.files import make_folder, replacing, write_text
from dapd.lab.settings import LENGTHS, TrainSettings
from dapd.lab.tokenizer import LabTokenizer
from dapd.models import llada
from dapd.models.checkpoint import INDEX
from dapd.models.loading import load_network
from dapd.models.transformer import Transformer, TransformerConfig, unfused

SHARD_BYTES = 15 * 2**20
"""Size in bytes up to which one weights file of an export is filled."""

VOCAB_MULTIPLE = 64
"""The embedding has unused rows up to a multiple of this, which keeps matrix products aligned."""


LLADA = {
    "architectures": ["LLaDAModelLM"],
    "model_type": "llada",
    "block_type": "llama",
    "block_group_size": 1,
    "activation_type": "silu",
    "rope": True,
    "rope_theta": 10000.0,
    "rope_full_precision": True,
    "alibi": False,
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "rms_norm_eps": 1e-5,
    "attention_layer_norm": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "bias_for_layer_norm": False,
    "input_emb_norm": False,
    "scale_logits": False,
    "weight_tying": False,
    "attention_dropout": 0.0,
    "embedding_dropout": 0.0,
    "residual_dropout": 0.0,
    "precision": "amp_bf16",
    "use_cache": False,
}
"""The part of config.json that is the same for every size of model and vocabulary."""


def llada_config(settings: TrainSettings, tokenizer: LabTokenizer) -> dict[str, Any]:
    """The content of config.json, under LLaDA's keys."""
    vocab = -(-len(tokenizer) // VOCAB_MULTIPLE) * VOCAB_MULTIPLE
    return {
        **LLADA,
        "d_model": settings.width,
        "n_layers": settings.layers,
        "n_heads": settings.heads,
        "n_kv_heads": settings.heads,
        "mlp_hidden_size": settings.mlp,
        "vocab_size": vocab,
        "embedding_size": vocab,
        "max_sequence_length": max(LENGTHS),
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.eos_id,
        "pad_token_id": tokenizer.eos_id,
        "eot_token_id": tokenizer.eot_id,
        "mask_token_id": tokenizer.mask_id,
    }


def network_config(settings: TrainSettings, tokenizer: LabTokenizer) -> TransformerConfig:
    """The network's configuration, parsed from the content of config.json as a loader parses it."""
    return llada.parse(llada_config(settings, tokenizer))


def export(folder: Path, settings: TrainSettings, weights: Mapping[str, Tensor], tokenizer: LabTokenizer) -> None:
    """Write a checkpoint folder in place of an earlier export. `weights` are keyed by the network's parameter names."""
    make_folder(folder)
    for old in (*folder.glob("model*.safetensors"), folder / INDEX):
        old.unlink(missing_ok=True)
    config = json.dumps(llada_config(settings, tokenizer), indent=2, sort_keys=True)
    write_text(folder / "config.json", config + "\n")
    tokenizer.save(folder)
    parts = unfused(network_config(settings, tokenizer), weights)
    # Copied, because a safetensors file cannot hold two tensors that share their memory.
    renamed = {
        llada.NAMES.of(name): tensor.detach().to("cpu", torch.bfloat16, copy=True) for name, tensor in parts.items()
    }
    shards = _shards({name: tensor.contiguous() for name, tensor in renamed.items()})
    if len(shards) == 1:
        _save(shards[0], folder / "model.safetensors")
        return
    names = [f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)]
    for name, shard in zip(names, shards, strict=True):
        _save(shard, folder / name)
    total = sum(tensor.nbytes for tensor in renamed.values())
    where = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
    write_text(folder / INDEX, json.dumps(index, indent=2) + "\n")


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    with replacing(path) as draft:
        save_file(tensors, draft, {"format": "pt"})


@torch.no_grad()
def start_from(network: Transformer, tokenizer: LabTokenizer, folder: Path) -> None:
    """Copy the weights of an earlier checkpoint into a network. Its vocabulary may differ: the rows of the embedding
    and the head are matched by the text of their tokens."""
    earlier = load_network(folder, device=network.device, dtype=network.dtype)
    number = LabTokenizer.load(folder).vocabulary
    known = [(i, number[token]) for token, i in tokenizer.vocabulary.items() if token in number]
    to, origin = (torch.tensor(ids, device=network.device) for ids in zip(*known, strict=True))
    theirs = dict(earlier.named_parameters())
    for name, mine in network.named_parameters():
        of_words = name in ("embed.weight", "head.weight")
        if mine.shape == theirs[name].shape:
            mine.copy_(theirs[name])
        elif not of_words:
            shapes = f"{name} is {list(theirs[name].shape)} there and {list(mine.shape)} here"
            raise DapdError(f"{folder} holds a model of another size: {shapes}")
        if of_words:
            mine[to] = theirs[name][origin]


def checksums(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of weights in a checkpoint folder."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*.safetensors"))}


def _shards(tensors: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """Tensors in groups of at most `SHARD_BYTES`, in order."""
    shards: list[dict[str, Tensor]] = [{}]
    for name, tensor in tensors.items():
        if shards[-1] and sum(t.nbytes for t in shards[-1].values()) + tensor.nbytes > SHARD_BYTES:
            shards.append({})
        shards[-1][name] = tensor
    return shards
