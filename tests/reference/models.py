"""Random models on which decoders have to decide: confidences all over 0..1, attention that picks and chooses."""

from __future__ import annotations

from functools import cache
from typing import Literal

import torch

from dapd.models import Profile, Transformer, TransformerConfig, random

Family = Literal["llada", "dream"]
IDS = Profile(mask_id=45, eos_id=46, pad_id=46, eot_id=47, bos_id=44)
VOCAB = 48
PROMPTS = [[3, 7, 1, 9, 20], [30, 2, 2], [11, 40, 5, 8, 17, 23, 6]]


def shape(family: Family, n_layers: int = 3) -> TransformerConfig:
    """Grouped heads and biases for Dream. Rotation in the model's dtype, so that float64 is float64 all through."""
    dream = family == "dream"
    return TransformerConfig(
        n_layers=n_layers,
        d_model=24,
        n_heads=2,
        n_kv_heads=1 if dream else 2,
        d_mlp=40,
        vocab_size=VOCAB,
        profile=IDS,
        max_length=96,
        norm_eps=1e-6 if dream else 1e-5,
        qkv_bias=dream,
        rope_fp32=False,
        lookback=1 if dream else 0,
    )


def build(
    family: Family,
    seed: int = 0,
    *,
    sharpness: float = 7.0,
    dtype: torch.dtype = torch.float64,
    boosted: dict[int, float] | None = None,
    n_layers: int = 3,
) -> Transformer:
    """A random model whose masks listen to what stands around them. Built once: do not change it.

    float64, unless told otherwise: engine and reference then agree to the last digits, and no decision of theirs hangs
    on rounding. `boosted` scales the head's row of some tokens, so that they are predicted often.
    """
    return _build(shape(family, n_layers), seed, sharpness, dtype, tuple((boosted or {}).items()))


@cache
def _build(
    config: TransformerConfig, seed: int, sharpness: float, dtype: torch.dtype, boosted: tuple[tuple[int, float], ...]
) -> Transformer:
    model = random(config, seed=seed, sharpness=sharpness, dtype=dtype)
    with torch.no_grad():
        model.embed.weight[IDS.mask_id] *= 0.2
        for layer in model.layers:
            layer.qkv_proj.weight[: config.d_model] *= 5
        for token, gain in boosted:
            model.head.weight[token] *= gain
    return model


def sizes(*decoded: object) -> set[int]:
    """How many tokens the passes committed: what tells a real comparison from an empty one."""
    return {len(step) for result in decoded for step in result.steps}
