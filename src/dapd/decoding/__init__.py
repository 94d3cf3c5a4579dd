"""Decoding: the loop, the rows that go through it, the plan of a pass, and passes recorded as CUDA graphs."""

from dapd.decoding.decoder import Decoder, decode
from dapd.decoding.graphs import Recordings
from dapd.decoding.options import Options, Reuse
from dapd.decoding.row import Constraint
from dapd.decoding.step import Step, Top

__all__ = ["Constraint", "Decoder", "Options", "Recordings", "Reuse", "Step", "Top", "decode"]
