"""The engine under test, told in the references' terms: what each forward pass of a row committed, by position."""

from __future__ import annotations

from dapd import Canvas, Options, decode
from dapd.models import MaskedLM
from dapd.strategies import Selects
from reference.common import Decoded


def blank(model: MaskedLM, prompts: list[list[int]], n_new: int) -> Canvas:
    return Canvas.blank(prompts, n_new, mask_id=model.profile.mask_id, pad_id=model.profile.pad_id)


def run(model: MaskedLM, canvas: Canvas, strategy: Selects, options: Options | None = None) -> list[Decoded]:
    """One result per row, positions counted from the row's first token. A pass a row sat out is not a step of it."""
    rows = [Decoded(canvas.row(row).tolist()) for row in range(canvas.batch)]
    final = canvas
    for step in decode(model, canvas, strategy, options):
        for row, (out, pad) in enumerate(zip(rows, canvas.padding.tolist(), strict=True)):
            chosen = step.commit[row].nonzero().flatten().tolist()
            committed = {step.window.start + i - pad: int(step.token[row, i]) for i in chosen}
            if bool(step.active[row]):
                out.commit(committed)
            else:
                assert not committed
        final = step.canvas
    for row, out in enumerate(rows):
        stopped_early = options is not None and options.early_stop
        assert stopped_early or out.tokens == final.row(row).tolist(), "the steps and the canvas tell different stories"
        out.tokens = final.row(row).tolist()
    return rows


def one(model: MaskedLM, prompt: list[int], n_new: int, strategy: Selects, options: Options | None = None) -> Decoded:
    return run(model, blank(model, [prompt], n_new), strategy, options)[0]
