"""Dependency-aware parallel decoding for masked diffusion language models."""

from dapd.canvas import Canvas
from dapd.engine import Options, Reuse, Step, decode
from dapd.errors import DapdError, StrategyContractError
from dapd.generation import Completion, DiffusionLM, load
from dapd.models import MaskedLM, Prediction, Profile, TransformerConfig, random
from dapd.sampling import Sampling
from dapd.settings import PAPER, Setting, setting, strategy
from dapd.strategies import (
    PRESETS,
    AttentionNeed,
    Dapd,
    DreamSchedule,
    EntropyBound,
    Factor,
    Klass,
    Observation,
    Progress,
    Selection,
    Strategy,
    Threshold,
    TopK,
)
from dapd.trace import Trace, read_traces, write_traces

__version__ = "0.1.0"

__all__ = [
    "PAPER",
    "PRESETS",
    "AttentionNeed",
    "Canvas",
    "Completion",
    "Dapd",
    "DapdError",
    "DiffusionLM",
    "DreamSchedule",
    "EntropyBound",
    "Factor",
    "Klass",
    "MaskedLM",
    "Observation",
    "Options",
    "Prediction",
    "Profile",
    "Progress",
    "Reuse",
    "Sampling",
    "Selection",
    "Setting",
    "Step",
    "Strategy",
    "StrategyContractError",
    "Threshold",
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
