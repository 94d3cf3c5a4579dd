"""The text as it is being unmasked, in the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import IO

import torch
from rich.console import Console
from rich.live import Live
from rich.text import Text

from dapd.decoding import Step
from dapd.generation import DiffusionLM
from dapd.io.wording import plural
from dapd.trace import text_on

REDRAWS_PER_SECOND = 20
SHADES = (
    "bold reverse",
    "#ffffff on #414487",
    "#ffffff on #2a788e",
    "#000000 on #22a884",
    "#000000 on #7ad151",
)
"""The newest first. Colours mean what they mean in the viewer: light is early, dark is late, the newest stand out."""
MASK, END, BROKEN = "░", "·", "\ufffd"
BAR = 24
BOTTOM = 4
"""Lines kept free under the text: the bar, the counts, and room for the cursor."""


class LiveView:
    """Redraws the generation region of the first row after each step, but not faster than the eye follows."""

    def __init__(
        self, lm: DiffusionLM, out: IO[str], *, clock: Callable[[], float] = time.monotonic, pace: float = 0.0
    ) -> None:
        self.lm = lm
        self.console = Console(file=out)
        self.quiet = not self.console.is_terminal
        self.live = Live(console=self.console, auto_refresh=False, vertical_overflow="visible")
        self.clock = clock
        self.pace = pace
        """The least number of seconds for which each pass is shown, so that a short decoding can be watched."""
        self.drawn = float("-inf")
        self.ages: dict[int, int] = {}
        self.passes = 0
        self.last: Step | None = None

    def __enter__(self) -> LiveView:
        if not self.quiet:
            self.live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self.quiet:
            return
        if self.last is not None:
            self.live.update(self.render(self.last, done=kind is None), refresh=True)
        self.live.__exit__(kind, error, where)

    def add(self, step: Step) -> None:
        """Take note of a step, and draw it if the last drawing is old enough."""
        if self.quiet or step.row != 0:
            return
        if self.pace and self.last is None:
            self.draw(masked_again(step))
        self.last = step
        self.passes += 1
        for place in step.commit.nonzero().flatten().tolist():
            self.ages[step.window.start + place] = self.passes
        now = self.clock()
        if self.pace or now - self.drawn >= 1 / REDRAWS_PER_SECOND:
            self.drawn = now
            self.draw(step)

    def draw(self, step: Step) -> None:
        self.live.update(self.render(step), refresh=True)
        time.sleep(self.pace)

    def render(self, step: Step, *, done: bool = False) -> Text:
        """The generation region: decided tokens coloured by age, masks as quiet boxes, and the progress.

        When it is done, only the text: the caller prints what it took.
        """
        text = Text(overflow="fold")
        for piece, style in self.pieces(step, done):
            text.append(piece, style=style)
        if done:
            return text
        text = self.fit(text)
        text.append("\n")
        text.append_text(self.progress(step))
        return text

    def pieces(self, step: Step, done: bool) -> Iterator[tuple[str, str]]:
        canvas = step.canvas
        profile = self.lm.network.profile
        tokens = canvas.tokens.tolist()
        slots = canvas.slots.tolist()
        first = canvas.start if canvas.n_new else 0
        held: list[int] = []
        for column in range(first, canvas.length):
            token = tokens[column]
            is_slot = slots[column]
            if is_slot and token in (profile.mask_id, profile.eos_id):
                yield from self.flush(held)
                end = "" if done else END
                yield (MASK if token == profile.mask_id else end), "bright_black"
                continue
            held.append(token)
            said = self.lm.tokenizer.decode(held, skip_special=True)
            # A character may be spread over several tokens: it is shown only once it is whole.
            if BROKEN not in said or len(held) >= 4:
                held.clear()
                yield printable(said), "" if done else self.shade(column)
        yield from self.flush(held)

    def flush(self, held: list[int]) -> Iterator[tuple[str, str]]:
        """The beginning of a character whose rest is still masked."""
        if held:
            held.clear()
            yield MASK, "bright_black"

    def shade(self, column: int) -> str:
        age = self.passes - self.ages[column] if column in self.ages else len(SHADES)
        return SHADES[min(age, len(SHADES) - 1)]

    def fit(self, text: Text) -> Text:
        """The lines around the newest tokens, where the terminal is too low for all of them."""
        lines = text.wrap(self.console, self.console.width)
        room = max(1, self.console.height - BOTTOM)
        if len(lines) <= room:
            return text
        newest = [i for i, line in enumerate(lines) if any(span.style == SHADES[0] for span in line.spans)]
        middle = newest[len(newest) // 2] if newest else 0
        start = max(0, min(middle - room // 2, len(lines) - room))
        return Text("\n", overflow="fold").join(lines[start : start + room])

    def progress(self, step: Step) -> Text:
        """A bar of decided slots, and the counts."""
        left = int(step.canvas.masked.sum())
        total = int(step.canvas.slots.sum())
        passes = plural(self.passes, "forward pass", "es")
        pace = text_on(step.canvas, self.lm.network.profile) / max(1, self.passes)
        counts = f" {passes}, {plural(left, 'mask')} left, {pace:.1f} tokens a pass"
        bar = max(0, min(BAR, self.console.width - len(counts)))
        full = round(bar * (total - left) / max(1, total))
        text = Text.assemble(("━" * full, "#22a884"), ("━" * (bar - full), "bright_black"), (counts, "dim"))
        text.truncate(self.console.width)
        return text


def masked_again(step: Step) -> Step:
    """The step with what it decided masked again: the canvas that its pass began with."""
    decided = torch.zeros(step.canvas.length, dtype=torch.bool)
    decided[step.window] = step.commit
    if step.tail is not None:
        decided |= step.tail
    tokens = step.canvas.tokens.masked_fill(decided, step.canvas.mask_id)
    return replace(step, canvas=replace(step.canvas, tokens=tokens))


def printable(text: str) -> str:
    """The text without characters that move the cursor: a token must not destroy the picture."""
    return "".join(c if c == "\n" or c.isprintable() else " " * (c == "\t") for c in text)
