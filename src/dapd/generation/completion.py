"""The result for a prompt: its text, its tokens, and the trace of its decoding."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from dapd.trace import Trace


@dataclass(frozen=True)
class Completion:
    """The result for one prompt."""

    text: str
    """The generated text up to the end of the turn; for infilling the whole text."""
    ids: list[int]
    """All new tokens, the EOS tokens after the text included; for infilling those that were filled in."""
    prompt_ids: list[int]
    """The tokens of the prompt; for infilling the template, masks included."""
    finish_reason: Literal["stop", "length"]
    """stop: the text ended by itself (EOS or end of turn); length: all new tokens were used."""
    trace: Trace
    """What every forward pass committed."""
    compute_seconds: float = 0.0
    """The prompt's share of the time of the forward passes, which it may have shared with others."""

    @property
    def nfe(self) -> int:
        """Forward passes."""
        return self.trace.nfe

    @property
    def n_generated(self) -> int:
        """How many tokens were generated before the first EOS, or up to the end of the turn, which counts."""
        return self.trace.n_generated

    @property
    def tokens_per_forward(self) -> float:
        """Generated tokens of the text, per forward pass."""
        return self.trace.tokens_per_forward

    @property
    def seconds(self) -> float:
        """Time from the beginning of the first pass to the end of the last."""
        return self.trace.seconds

    def cut_at(self, stops: Iterable[str]) -> Completion:
        """The completion whose text ends before the first of some strings. Tokens and trace stay as they are."""
        places = [self.text.find(stop) for stop in stops if stop and stop in self.text]
        return replace(self, text=self.text[: min(places)], finish_reason="stop") if places else self

    def __repr__(self) -> str:
        return f"Completion({_short(self.text)!r}, nfe={self.nfe}, n_generated={self.n_generated})"


def _short(text: str, most: int = 60) -> str:
    """The beginning of a text, short enough for one line."""
    return text if len(text) <= most else text[: most - 3] + "..."
