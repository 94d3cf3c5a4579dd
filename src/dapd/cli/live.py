"""The text as it is being unmasked, in the terminal."""

from __future__ import annotations

import time
from types import TracebackType
from typing import IO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from dapd.engine import Step
from dapd.generation import DiffusionLM

REDRAWS_PER_SECOND = 20
SHADES = ("bright_magenta", "bright_blue", "cyan", "green", "yellow", "white")
"""Newest first: a token cools down over the steps after its commit."""


class LiveView:
    """Redraws the generation region of the first row after each step, at most so often a second."""

    def __init__(self, lm: DiffusionLM, out: IO[str]) -> None:
        self.lm = lm
        self.live = Live(console=Console(file=out), auto_refresh=False)
        self.drawn = 0.0
        self.ages: dict[int, int] = {}
        self.last: Step | None = None

    def __enter__(self) -> LiveView:
        self.live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self.last is not None:
            self.live.update(self.render(self.last, done=kind is None), refresh=True)
        self.live.__exit__(kind, error, where)

    def add(self, step: Step) -> None:
        """Take note of a step, and draw it if the last drawing is old enough."""
        self.last = step
        for column in step.commit[0].nonzero().flatten().tolist():
            self.ages[column + step.window.start] = step.index
        now = time.monotonic()
        if now - self.drawn >= 1 / REDRAWS_PER_SECOND:
            self.drawn = now
            self.live.update(self.render(step), refresh=True)

    def render(self, step: Step, *, done: bool = False) -> Text:
        """The generation region: decided tokens coloured by age, masks as quiet boxes."""
        canvas, profile = step.canvas, self.lm.network.profile
        text = Text()
        tokens, slots = canvas.tokens[0].tolist(), canvas.slots[0].tolist()
        for column in range(canvas.start if canvas.n_new else int(canvas.padding[0]), canvas.length):
            token = tokens[column]
            if token == profile.mask_id and slots[column]:
                text.append("▒", style="bright_black")
            elif token == profile.eos_id and slots[column]:
                text.append("" if done else "·", style="bright_black")
            else:
                age = step.index - self.ages[column] if column in self.ages else len(SHADES)
                style = SHADES[min(age, len(SHADES) - 1)]
                text.append(self.lm.tokenizer.decode([token], skip_special=True), style="" if done else style)
        left = int(canvas.masked[0].sum())
        text.append(f"\n[{step.index + 1} forward passes, {left} masks left]", style="dim")
        return text
