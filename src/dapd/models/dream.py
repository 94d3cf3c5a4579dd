"""Dream (v0-Base, v0-Instruct, Dream-Coder) and DiffuCoder: Qwen2's layout, predictions shifted by one column."""

from __future__ import annotations

from typing import Any

from dapd.errors import DapdError
from dapd.models.base import Profile, reading_config
from dapd.models.checkpoint import TensorNames, number, rope_theta
from dapd.models.transformer import TransformerConfig

NAMES = TensorNames(
    embed="model.embed_tokens",
    norm="model.norm",
    head="lm_head",
    layer="model.layers.{}",
    parts={
        "attn_norm": "input_layernorm",
        "q_proj": "self_attn.q_proj",
        "k_proj": "self_attn.k_proj",
        "v_proj": "self_attn.v_proj",
        "o_proj": "self_attn.o_proj",
        "mlp_norm": "post_attention_layernorm",
        "gate_proj": "mlp.gate_proj",
        "up_proj": "mlp.up_proj",
        "down_proj": "mlp.down_proj",
    },
)

REQUIRED = {"hidden_act": "silu", "use_sliding_window": False, "use_mrope": False}

END_OF_TURN = {152064: 151645}
"""The id of <|im_end|> by the size of the vocabulary: the configs of the released checkpoints do not give it."""

FILLER = "<|dlm_pad|>"
"""The token that fills the canvas after a text of DiffuCoder, whose config names that of Dream."""


def parse(config: dict[str, Any], mask_id: int | None = None, eot_id: int | None = None) -> TransformerConfig:
    """The configuration of a Dream checkpoint."""
    for key, wanted in REQUIRED.items():
        if config.get(key, wanted) not in (wanted, None):
            raise DapdError(f"Dream config: {key} is {config[key]!r}; only {wanted!r} is supported")
    with reading_config("Dream"):
        vocab = int(config["vocab_size"])
        return TransformerConfig(
            n_layers=config["num_hidden_layers"],
            d_model=config["hidden_size"],
            n_heads=config["num_attention_heads"],
            n_kv_heads=config.get("num_key_value_heads") or config["num_attention_heads"],
            d_mlp=config["intermediate_size"],
            vocab_size=vocab,
            max_length=config["max_position_embeddings"],
            rope_theta=rope_theta(config),
            norm_eps=number(config, "rms_norm_eps", 1e-6),
            qkv_bias=True,
            tied=bool(config.get("tie_word_embeddings", False)),
            rope_fp32=False,
            lookback=1,
            profile=Profile.from_config(config, mask_id, eot_id, END_OF_TURN.get(vocab)),
        )
