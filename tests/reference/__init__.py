"""Slow, obvious decoders, one sequence at a time, written from the specification alone.

They share no code with `dapd`: plain loops, a forward pass of their own, a dictionary of committed tokens per step.
"""

from reference.common import Decoded
from reference.network import Sequence

__all__ = ["Decoded", "Sequence"]
