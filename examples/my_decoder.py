"""A decoder of one's own: commit the two positions of which the model is surest.

dapd generate "Shuffle the list: Nora, Cyrus, Luca" -s examples/my_decoder.py:TwoSurest
dapd compare -t shuffle,latin -p 20 -s examples/my_decoder.py:TwoSurest:count=1/2/4 -s dapd-direct
"""

from __future__ import annotations

from dataclasses import dataclass

import dapd


@dataclass(frozen=True)
class TwoSurest:
    """Commit the `count` masked positions of highest confidence in every pass."""

    count: int = 2
    """How many positions a pass commits."""

    def select(self, seen: dapd.Observation, memory: object = None, /) -> dapd.Selection:
        score = seen.confidence.masked_fill(~seen.masked, -1.0)
        best = score.topk(min(self.count, score.shape[-1]), dim=-1).indices
        return dapd.Selection(seen.masked.new_zeros(seen.masked.shape).scatter(-1, best, True) & seen.masked)
