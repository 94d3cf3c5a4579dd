"""A model that follows a script, and keeps a record of how it was asked."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dapd.models import Capture, Prediction, Profile, Span
from dapd.models.columns import as_tensor, take

MASK, EOS, EOT, VOCAB = 9, 8, 7, 10
Script = Callable[[int, int, list[int]], dict[int, float]]
"""(number of the pass, column, the row's tokens) -> {token: probability}; what is left goes to all others evenly."""


@dataclass
class Call:
    span: Span
    window: Span
    capture: Capture | None
    tokens: Tensor
    valid: Tensor | None
    cached: bool


@dataclass
class Scripted:
    """Predicts what the script says, whatever the columns computed. `attention` is cut to what is asked for."""

    script: Script
    lookback: int = 0
    n_layers: int = 4
    max_length: int = 64
    attention: Tensor | None = None
    profile: Profile = field(default_factory=lambda: Profile(mask_id=MASK, eos_id=EOS, pad_id=EOS, eot_id=EOT))
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    vocab_size: int = VOCAB
    graphable: bool = False
    calls: list[Call] = field(default_factory=list)

    def __call__(
        self,
        tokens: Tensor,
        span: Span,
        window: Span,
        *,
        valid: Tensor | None = None,
        cache: Any = None,
        capture: Capture | None = None,
    ) -> Prediction:
        number = len(self.calls)
        self.calls.append(Call(span, window, capture, tokens.clone(), valid, cache is not None))
        columns = as_tensor(window, tokens) if isinstance(window, slice) else window
        logits = torch.stack(
            [
                torch.stack([self._logits(number, c, row) for c in mine])
                for mine, row in zip(columns.tolist(), tokens.tolist(), strict=True)
            ]
        )
        if capture is None:
            return Prediction(logits)
        assert self.attention is not None
        queries = (columns - self.lookback).clamp_min(0) if capture.rows == "predictor" else columns
        rows = self.attention[queries]
        return Prediction(logits, rows if capture.keys == "canvas" else take(rows, columns, dim=2))

    def _logits(self, number: int, column: int, row: list[int]) -> Tensor:
        said = self.script(number, column, row)
        rest = (1 - sum(said.values())) / (VOCAB - len(said))
        return torch.tensor([math.log(max(said.get(v, rest), 1e-30)) if rest == rest else rest for v in range(VOCAB)])


def fixed(**columns: tuple[int, float]) -> Script:
    """The same prediction in every pass: fixed(c3=(5, 0.9)) says token 5 with probability 0.9 at column 3."""
    table = {int(name[1:]): {token: p} for name, (token, p) in columns.items()}
    return lambda number, column, row: table.get(column, {0: 0.5})


def rising(number: int, column: int, row: list[int]) -> dict[int, float]:
    """Token = column mod 6, more confident the further to the left."""
    return {column % 6: 0.95 - 0.03 * column}
