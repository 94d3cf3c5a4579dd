"""LLaDA (8B-Base, 8B-Instruct, 1.5): configuration and tensor names."""

from __future__ import annotations

from typing import Any

from dapd.errors import DapdError
from dapd.models.base import Profile, reading_config
from dapd.models.checkpoint import TensorNames, number, rope_theta
from dapd.models.transformer import TransformerConfig

NAMES = TensorNames(
    embed="model.transformer.wte",
    norm="model.transformer.ln_f",
    head="model.transformer.ff_out",
    layer="model.transformer.blocks.{}",
    # `ff_out` names the down projection inside a block and the head outside of them.
    parts={
        "attn_norm": "attn_norm",
        "q_proj": "q_proj",
        "k_proj": "k_proj",
        "v_proj": "v_proj",
        "o_proj": "attn_out",
        "mlp_norm": "ff_norm",
        "gate_proj": "ff_proj",
        "up_proj": "up_proj",
        "down_proj": "ff_out",
    },
)

REQUIRED = {
    "block_type": "llama",
    "layer_norm_type": "rms",
    "activation_type": "silu",
    "rope": True,
    "alibi": False,
    "attention_layer_norm": False,
    "include_bias": False,
    "bias_for_layer_norm": False,
    "scale_logits": False,
    "input_emb_norm": False,
    "block_group_size": 1,
}
"""The only values that the network supports; a config with others is refused rather than run wrongly."""

END_OF_TURN = {126464: 126348}
"""The id of <|eot_id|> by the size of the vocabulary: the configs of the released checkpoints do not give it."""


def parse(config: dict[str, Any], mask_id: int | None = None, eot_id: int | None = None) -> TransformerConfig:
    """The configuration of a LLaDA checkpoint."""
    for key, wanted in REQUIRED.items():
        if config.get(key, wanted) not in (wanted, None):
            raise DapdError(f"LLaDA config: {key} is {config[key]!r}; only {wanted!r} is supported")
    with reading_config("LLaDA"):
        heads = int(config["n_heads"])
        vocab = int(config.get("embedding_size") or config["vocab_size"])
        kv = config.get("n_kv_heads") or (1 if config.get("multi_query_attention") else heads)
        return TransformerConfig(
            n_layers=config["n_layers"],
            d_model=config["d_model"],
            n_heads=heads,
            n_kv_heads=kv,
            d_mlp=config.get("mlp_hidden_size") or config["mlp_ratio"] * config["d_model"],
            vocab_size=vocab,
            max_length=config["max_sequence_length"],
            rope_theta=rope_theta(config),
            norm_eps=number(config, "rms_norm_eps", 1e-5),
            qkv_bias=bool(config.get("include_qkv_bias", False)),
            tied=bool(config.get("weight_tying", True)),
            rope_fp32=bool(config.get("rope_full_precision", True)),
            profile=Profile.from_config(config, mask_id, eot_id, END_OF_TURN.get(vocab)),
        )
