"""Dependency-aware parallel decoding for masked diffusion language models."""

from importlib.metadata import PackageNotFoundError as _PackageNotFoundError
from importlib.metadata import version as _version

from dapd.canvas import Canvas
from dapd.decoding import Decoder, Options, Recordings, Reuse, Step, decode
from dapd.decoding.sampling import Sampling
from dapd.errors import DapdError, StrategyContractError
from dapd.generation import Completion, DiffusionLM, load, random
from dapd.models import Capture, KVCache, MaskedLM, Prediction, Profile, Span, TransformerConfig
from dapd.models.tokenizer import ByteTokenizer, Tokenizer
from dapd.settings import PAPER, Setting, setting, strategy
from dapd.strategies import (
    PRESETS,
    AttentionNeed,
    Dapd,
    Dawn,
    DistanceGraph,
    DreamSchedule,
    EntropyBound,
    Factor,
    Klass,
    LocalLeap,
    Needs,
    Observation,
    Progress,
    Selection,
    Selects,
    ShuffledGraph,
    Strategy,
    Threshold,
    TopK,
)
from dapd.trace import Trace, read_traces, write_traces

try:
    __version__ = _version("dapd")
except _PackageNotFoundError:  # a source tree that was never installed
    __version__ = "unknown"

__all__ = [
    "PAPER",
    "PRESETS",
    "AttentionNeed",
    "ByteTokenizer",
    "Canvas",
    "Capture",
    "Completion",
    "Dapd",
    "DapdError",
    "Dawn",
    "Decoder",
    "DiffusionLM",
    "DistanceGraph",
    "DreamSchedule",
    "EntropyBound",
    "Factor",
    "KVCache",
    "Klass",
    "LocalLeap",
    "MaskedLM",
    "Needs",
    "Observation",
    "Options",
    "Prediction",
    "Profile",
    "Progress",
    "Recordings",
    "Reuse",
    "Sampling",
    "Selection",
    "Selects",
    "Setting",
    "ShuffledGraph",
    "Span",
    "Step",
    "Strategy",
    "StrategyContractError",
    "Threshold",
    "Tokenizer",
    "TopK",
    "Trace",
    "TransformerConfig",
    "decode",
    "load",
    "random",
    "read_traces",
    "setting",
    "strategy",
    "write_traces",
]
