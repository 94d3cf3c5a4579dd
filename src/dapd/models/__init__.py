"""Models: the bidirectional network that two families of checkpoints share, and strict loading."""

from dapd.models.base import Capture, MaskedLM, Prediction, Profile
from dapd.models.cache import KVCache, KVPool
from dapd.models.columns import Span
from dapd.models.fp8 import to_fp8
from dapd.models.loading import ARCHITECTURES, SHAPES, is_masked_lm, load_network, random, resolve
from dapd.models.transformer import Transformer, TransformerConfig

__all__ = [
    "ARCHITECTURES",
    "SHAPES",
    "Capture",
    "KVCache",
    "KVPool",
    "MaskedLM",
    "Prediction",
    "Profile",
    "Span",
    "Transformer",
    "TransformerConfig",
    "is_masked_lm",
    "load_network",
    "random",
    "resolve",
    "to_fp8",
]
