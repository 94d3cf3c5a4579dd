"""Decoders, one per file. `PRESETS` names them; any other object with `select` is a strategy too."""

from dapd.strategies.base import AttentionNeed, Needs, Observation, Progress, Selection, Selects, Strategy, needs_of
from dapd.strategies.controls import DistanceGraph, ShuffledGraph
from dapd.strategies.dapd import Dapd
from dapd.strategies.dawn import Dawn
from dapd.strategies.dream_schedule import DreamSchedule
from dapd.strategies.entropy_bound import EntropyBound
from dapd.strategies.factor import Factor
from dapd.strategies.klass import Klass
from dapd.strategies.local_leap import LocalLeap
from dapd.strategies.threshold import Threshold
from dapd.strategies.topk import TopK

PRESETS: dict[str, Strategy] = {
    "original": TopK(),
    "dream": DreamSchedule(),
    "fast-dllm": Threshold(),
    "fast-dllm-factor": Factor(),
    "eb-sampler": EntropyBound(),
    "klass": Klass(),
    "dapd-staged": Dapd(),
    "dapd-direct": Dapd(shortcut="direct", tau_max=0.05),
    "dawn": Dawn(),
    "local-leap": LocalLeap(),
    "control-shuffled": ShuffledGraph(),
    "control-distance": DistanceGraph(),
    "control-confidence": Dapd(order="confidence"),
}
"""The decoders by name, with their default settings."""

__all__ = [
    "PRESETS",
    "AttentionNeed",
    "Dapd",
    "Dawn",
    "DistanceGraph",
    "DreamSchedule",
    "EntropyBound",
    "Factor",
    "Klass",
    "LocalLeap",
    "Needs",
    "Observation",
    "Progress",
    "Selection",
    "Selects",
    "ShuffledGraph",
    "Strategy",
    "Threshold",
    "TopK",
    "needs_of",
]
