"""The loop under test, told in the references' terms: what each forward pass of a row committed, by position."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dapd import Canvas, Options, Step, decode
from dapd.models import MaskedLM
from dapd.strategies import Selects
from reference.common import Decoded


def blank(model: MaskedLM, prompts: list[list[int]], n_new: int) -> list[Canvas]:
    return [Canvas.blank(prompt, n_new, mask_id=model.profile.mask_id) for prompt in prompts]


def told(canvases: Sequence[Canvas], steps: Iterable[Step], *, stops_early: bool = False) -> list[Decoded]:
    """One result per row, positions counted from the row's first token."""
    rows = [Decoded(canvas.tokens.tolist()) for canvas in canvases]
    final = list(canvases)
    for step in steps:
        assert step.index == rows[step.row].nfe, "the passes of a row are counted"
        chosen = step.commit.nonzero().flatten().tolist()
        rows[step.row].commit({step.window.start + i: int(step.token[i]) for i in chosen})
        final[step.row] = step.canvas
    for row, canvas in zip(rows, final, strict=True):
        assert stops_early or row.tokens == canvas.tokens.tolist(), "the steps and the canvas tell different stories"
        row.tokens = canvas.tokens.tolist()
    return rows


def run(
    model: MaskedLM, canvases: Sequence[Canvas], strategy: Selects, options: Options | None = None, **more: object
) -> list[Decoded]:
    """Decode the canvases together."""
    early = options is not None and options.early_stop
    return told(canvases, decode(model, canvases, strategy, options, **more), stops_early=early)


def one(model: MaskedLM, prompt: list[int], n_new: int, strategy: Selects, options: Options | None = None) -> Decoded:
    return run(model, blank(model, [prompt], n_new), strategy, options)[0]
