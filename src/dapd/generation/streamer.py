"""Text that is shown while it is decoded, through the interface that `transformers` has for this."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from dapd.canvas import Canvas
from dapd.decoding import Options, Step


class Streamer(Protocol):
    """The interface that `transformers` calls a text diffusion streamer."""

    def put(self, value: Tensor) -> None: ...
    def put_draft(self, value: Tensor) -> None: ...
    def end(self) -> None: ...


class Feed:
    """Shows a streamer every block when it is finished, and what follows it as a draft."""

    def __init__(self, streamer: Streamer, canvas: Canvas, options: Options) -> None:
        self.streamer = streamer
        self.pending = canvas.blocks(options.block_length, options.n_blocks)
        self.shown = canvas.start
        self.stop = canvas.stop
        streamer.put(canvas.tokens[: self.shown])

    def add(self, step: Step) -> None:
        tokens = step.canvas.tokens
        masked = step.canvas.masked
        while self.pending and not masked[self.pending[0]].any():
            stop = self.pending.pop(0).stop
            self.streamer.put(tokens[self.shown : stop])
            self.shown = stop
        if self.pending:
            self.streamer.put_draft(tokens[self.shown : self.stop])

    def end(self, row: list[int]) -> None:
        """Show the rest, which is the whole text if everything was fixed beforehand, and end the stream."""
        if self.shown < self.stop:
            self.streamer.put(torch.tensor(row[self.shown : self.stop]))
        self.streamer.end()
