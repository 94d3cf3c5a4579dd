"""Tiny models, their Hugging Face twins, and checkpoints written with the released checkpoints' own names.

The name tables below are written from the specification, not taken from the code they test.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from dapd.models import Prediction, Profile, Span, Transformer, TransformerConfig, random
from dapd.models.columns import as_tensor

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"

VOCAB = 61
PROFILE = Profile(mask_id=57, eos_id=58, pad_id=58, eot_id=59)
LLADA = TransformerConfig(
    n_layers=4, d_model=32, n_heads=4, n_kv_heads=4, d_mlp=48, vocab_size=VOCAB, max_length=64, rope_theta=5e5,
    profile=PROFILE,
)  # fmt: skip
DREAM = replace(LLADA, n_kv_heads=2, rope_theta=1e6, norm_eps=1e-6, qkv_bias=True, rope_fp32=False, lookback=1)

CONFIGS = {
    "llada": LLADA,
    "llada-gqa": replace(LLADA, n_kv_heads=2),
    "llada-tied": replace(LLADA, tied=True),
    "dream": DREAM,
    "dream-tied": replace(DREAM, tied=True, n_kv_heads=1),
}

TOP = {"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
PART = {
    "attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm", "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj", "v_proj": "self_attn.v_proj", "o_proj": "self_attn.o_proj",
    "gate_proj": "mlp.gate_proj", "up_proj": "mlp.up_proj", "down_proj": "mlp.down_proj",
}  # fmt: skip
LLADA_TOP = {"embed": "wte", "norm": "ln_f", "head": "ff_out"}
LLADA_PART = {
    "attn_norm": "attn_norm", "mlp_norm": "ff_norm", "q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj",
    "o_proj": "attn_out", "gate_proj": "ff_proj", "up_proj": "up_proj", "down_proj": "ff_out",
}  # fmt: skip


def build(config: TransformerConfig, seed: int = 0) -> Transformer:
    """A random model none of whose weights is trivial: norms are not one, biases not small."""
    network = random(config, seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if weight.dim() == 1:
                center = 1.0 if "norm" in name else 0.0
                weight.copy_(center + 0.3 * torch.randn(weight.shape, generator=generator))
    return network


def parts(network: Transformer) -> dict[str, Tensor]:
    """The weights with the fused projections cut up, by a cut that is not the one under test."""
    c, found = network.config, {}
    kv = c.d_model // c.n_heads * c.n_kv_heads
    cuts = {
        "qkv_proj": {"q_proj": (0, c.d_model), "k_proj": (c.d_model, kv), "v_proj": (c.d_model + kv, kv)},
        "gate_up_proj": {"gate_proj": (0, c.d_mlp), "up_proj": (c.d_mlp, c.d_mlp)},
    }
    for name, weight in network.named_parameters():
        fused = next((f for f in cuts if f in name), None)
        if fused is None:
            found[name] = weight
        else:
            for part, (start, rows) in cuts[fused].items():
                found[name.replace(fused, part)] = weight[start : start + rows]
    return found


def hf_name(ours: str) -> str:
    """The name of one of our parameters in Hugging Face's Llama and Qwen2, and in Dream's checkpoints."""
    head, *rest = ours.split(".")
    return f"model.layers.{rest[0]}.{PART[rest[1]]}.{rest[2]}" if head == "layers" else f"{TOP[head]}.{rest[0]}"


def llada_name(ours: str) -> str:
    head, *rest = ours.split(".")
    inner = f"blocks.{rest[0]}.{LLADA_PART[rest[1]]}.{rest[2]}" if head == "layers" else f"{LLADA_TOP[head]}.{rest[0]}"
    return f"model.transformer.{inner}"


def hf_twin(network: Transformer) -> Any:
    """The same weights in `LlamaForCausalLM` (no biases) or `Qwen2ForCausalLM` (biases), with eager attention."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    c = network.config
    config_class, model_class = (Qwen2Config, Qwen2ForCausalLM) if c.qkv_bias else (LlamaConfig, LlamaForCausalLM)
    config = config_class(
        hidden_size=c.d_model, intermediate_size=c.d_mlp, num_hidden_layers=c.n_layers, vocab_size=c.vocab_size,
        num_attention_heads=c.n_heads, num_key_value_heads=c.n_kv_heads, rms_norm_eps=c.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta}, tie_word_embeddings=c.tied,
        max_position_embeddings=c.max_length, attn_implementation="eager",
    )  # fmt: skip
    twin = model_class(config).eval()
    state = {hf_name(name): weight for name, weight in parts(network).items()}
    if c.tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    twin.load_state_dict(state, strict=True)
    return twin


@torch.no_grad()
def hf_forward(twin: Any, tokens: Tensor, valid: Tensor | None = None) -> Any:
    """Logits and attentions under a full mask, padded keys out of sight, positions counted from the first valid one."""
    valid = torch.ones_like(tokens, dtype=torch.bool) if valid is None else valid
    bias = torch.zeros(valid.shape).masked_fill(~valid, torch.finfo(torch.float32).min)
    mask = bias[:, None, None, :].expand(-1, 1, tokens.shape[1], -1)
    position = (valid.cumsum(-1) - 1).clamp_min(0)
    return twin(tokens, attention_mask=mask, position_ids=position, output_attentions=True, use_cache=False)


def full(network: Transformer, tokens: Tensor, **kwargs: Any) -> Prediction:
    """A forward pass over, and a prediction of, the whole canvas."""
    everything = slice(0, tokens.shape[1])
    return network(tokens, everything, everything, **kwargs)


def tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, PROFILE.mask_id, shape, generator=torch.Generator().manual_seed(seed))


def left_padded(*lengths: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random rows of these lengths, padded on the left, and where they are valid."""
    length = max(lengths)
    valid = torch.tensor([[False] * (length - n) + [True] * n for n in lengths])
    return torch.where(valid, tokens(len(lengths), length, seed=seed), PROFILE.pad_id), valid


def checkpoint_config(config: TransformerConfig, **changes: Any) -> dict[str, Any]:
    """config.json in the words of the released checkpoints."""
    c, ids = config, config.profile
    common = {"vocab_size": c.vocab_size, "mask_token_id": ids.mask_id, "eos_token_id": ids.eos_id,
              "pad_token_id": ids.pad_id, "eot_token_id": ids.eot_id, "rope_theta": c.rope_theta,
              "rms_norm_eps": c.norm_eps}  # fmt: skip
    if c.lookback:
        own = {"architectures": ["DreamModel"], "model_type": "Dream", "hidden_size": c.d_model, "hidden_act": "silu",
               "num_hidden_layers": c.n_layers, "num_attention_heads": c.n_heads, "intermediate_size": c.d_mlp,
               "num_key_value_heads": c.n_kv_heads, "max_position_embeddings": c.max_length, "rope_scaling": None,
               "tie_word_embeddings": c.tied, "use_sliding_window": False, "use_mrope": False}  # fmt: skip
    else:
        own = {"architectures": ["LLaDAModelLM"], "model_type": "llada", "d_model": c.d_model, "n_layers": c.n_layers,
               "n_heads": c.n_heads, "n_kv_heads": c.n_kv_heads, "mlp_hidden_size": c.d_mlp, "block_type": "llama",
               "embedding_size": c.vocab_size, "max_sequence_length": c.max_length, "activation_type": "silu",
               "layer_norm_type": "rms", "rope": True, "rope_full_precision": True, "weight_tying": c.tied,
               "include_bias": False, "include_qkv_bias": c.qkv_bias, "alibi": False, "mlp_ratio": 4,
               "attention_layer_norm": False, "scale_logits": False, "input_emb_norm": False}  # fmt: skip
    return common | own | changes


def write_checkpoint(
    folder: Path,
    network: Transformer,
    *,
    shards: int = 1,
    change: Callable[[dict[str, Tensor]], object] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """A checkpoint folder with the family's real tensor names; `change` may spoil the tensors first."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(checkpoint_config(network.config, **(config or {}))))
    name_of = hf_name if network.config.lookback else llada_name
    state = {name_of(name): weight.clone() for name, weight in parts(network).items()}
    if change is not None:
        change(state)
    if shards == 1:
        save_file(state, folder / "model.safetensors")
        return folder
    names = sorted(state)
    weight_map = {}
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        part = {name: state[name] for name in names[number::shards]}
        save_file(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": sum(t.nbytes for t in state.values())}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


LLADA_TEMPLATE = (
    "{% for message in messages %}{% if loop.index0 == 0 %}{{ bos_token }}{% endif %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
)
"""The effect of LLaDA's own template; used where its files are not at hand."""

SPECIAL = ["<|startoftext|>", "<|endoftext|>", "<|mdm_mask|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
"""Ids 0..5 of the tiny tokenizer; bytes follow at 6..261."""
TINY_PROFILE = Profile(mask_id=2, eos_id=1, pad_id=1, eot_id=5, bos_id=0)
TINY_VOCAB = 262


def write_tokenizer(
    folder: Path, *, template: str | None = LLADA_TEMPLATE, bos: bool = False, mask: str | None = None
) -> Path:
    """A byte-level tokenizer in `tokenizer.json` with LLaDA's special tokens; `bos`: it begins every text with one."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: number for number, token in enumerate([*SPECIAL, *alphabet])}
    inner = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    if bos:
        inner.post_processor = processors.TemplateProcessing(
            single="<|startoftext|> $A", special_tokens=[("<|startoftext|>", 0)]
        )
    inner.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SPECIAL[0], "eos_token": SPECIAL[1],
                "pad_token": SPECIAL[1], "clean_up_tokenization_spaces": False}  # fmt: skip
    if template is not None:
        settings["chat_template"] = template
    if mask is not None:
        settings["mask_token"] = mask
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@dataclass
class Scripted:
    """A model that wants `script[column]` at each column, the more so the further left: a predictable decoding."""

    script: Sequence[int]
    profile: Profile = PROFILE
    vocab_size: int = VOCAB
    n_layers: int = 2
    max_length: int = 64
    lookback: int = 0
    nan_at: int | None = None
    """The forward pass whose logits are not numbers."""
    calls: list[tuple[Span, Span]] = field(default_factory=list)

    device = torch.device("cpu")
    graphable = False

    def __call__(self, tokens: Tensor, span: Span, window: Span, *, valid=None, cache=None, capture=None):
        self.calls.append((span, window))
        columns = as_tensor(window, tokens) if isinstance(window, slice) else window
        logits = torch.zeros(*columns.shape, self.vocab_size)
        for row, mine in enumerate(columns.tolist()):
            for i, column in enumerate(mine):
                logits[row, i, self.script[column]] = 6.0 - 0.05 * column
        if len(self.calls) - 1 == self.nan_at:
            logits[:] = torch.nan
        attention = None
        if capture is not None:
            n_keys = tokens.shape[1] if capture.keys == "canvas" else columns.shape[1]
            attention = torch.full((*columns.shape, n_keys), 0.01)
        return Prediction(logits, attention)
