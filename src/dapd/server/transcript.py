"""The text of a canvas that is being filled, as far as it can no longer change."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Literal

from dapd.canvas import Canvas
from dapd.generation import DiffusionLM
from dapd.trace import text_on

BROKEN = "\ufffd"
"""The character that a tokenizer writes for the first bytes of a character whose other bytes are missing."""


class Transcript:
    """Reads the finished beginning of a canvas: the decided tokens before the first mask, up to the end of the text."""

    def __init__(self, lm: DiffusionLM, canvas: Canvas, first: int, stops: Sequence[str] = ()) -> None:
        self.lm = lm
        self.first = first
        """Position at which the text begins."""
        self.stops = stops
        self.open_ended = canvas.n_new is not None
        self.slots = canvas.slots[first:].tolist()
        profile = lm.network.profile
        self._ends = {profile.eos_id, profile.eot_id} if self.open_ended else set()
        self._ready = -1
        self.text = ""
        """The text that can no longer change."""
        self.ids: list[int] = []
        """The tokens of the text."""
        self._n_cut: int | None = None
        """Generated tokens up to the end of the first stop string; None until one is found."""
        self.stopped = False
        """Whether the text came to its end: EOS, the end of the turn, or a stop string."""

    @property
    def finish_reason(self) -> Literal["stop", "length"]:
        return "stop" if self.stopped else "length"

    def read(self, canvas: Canvas) -> str:
        """Take in the canvas after a pass; returns the text that was added."""
        masked = canvas.masked[self.first :]
        ready = int(masked.int().argmax()) if masked.any() else len(masked)
        if ready == self._ready or self.stopped:
            return ""
        self._ready = ready
        ids = canvas.tokens[self.first : self.first + ready].tolist()
        end = next((place for place, token in enumerate(ids) if token in self._ends), None)
        self.stopped = end is not None
        self.ids = ids[:end]
        text = self._decode(self.ids)
        cut = self._first_stop(text)
        if cut is not None:
            start, stop = cut
            self.stopped = True
            self._n_cut = sum(self.slots[: self._tokens_for(stop)])
            self.ids = self.ids[: self._tokens_for(start)]
            text = text[:start]
        elif not self.stopped and ready < len(masked):
            text = self._settled(text)
        # Some tokenizers write earlier tokens differently once others follow (`it 's` becomes `it's`). A stream cannot
        # take back what was sent; it continues from the point at which the two versions part.
        sent = self.text
        while not text.startswith(sent):
            sent = sent[:-1]
        added = text[len(sent) :]
        self.text = text
        return added

    def n_tokens(self, canvas: Canvas) -> int:
        """Generated tokens of a canvas as its trace counts them; where a stop string ends the text, those up to its
        end."""
        if self._n_cut is not None:
            return self._n_cut
        return text_on(canvas, self.lm.network.profile)

    def _decode(self, ids: list[int]) -> str:
        return self.lm.tokenizer.decode(ids)

    def _tokens_for(self, length: int) -> int:
        """How many of the tokens are needed for a text of at least that many characters."""
        return bisect_left(range(len(self.ids)), length, key=lambda count: len(self._decode(self.ids[:count])))

    def _first_stop(self, text: str) -> tuple[int, int] | None:
        """Where the first stop string begins and ends; of two that begin at the same place, the shorter one."""
        found = [(text.find(stop), len(stop)) for stop in self.stops if stop in text]
        start, length = min(found, default=(-1, 0))
        return None if start < 0 else (start, start + length)

    def _settled(self, text: str) -> str:
        """A text without what the next tokens may change: half a character, or the beginning of a stop string."""
        text = text.rstrip(BROKEN)
        longest = max(map(len, self.stops), default=0)
        for held in range(min(longest - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-held:]) for stop in self.stops):
                return text[:-held]
        return text
