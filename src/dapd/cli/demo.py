"""`make demo`: the main job end to end on a model that needs no download."""

from __future__ import annotations

from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from dapd.cli.live import LiveView
from dapd.generation import DEFAULT_MODEL, Completion, load
from dapd.strategies import PRESETS
from dapd.trace import write_traces

OUT = Path("demo")


def main() -> None:
    """Decode one prompt live, then with every preset, and write the traces."""
    torch.set_num_threads(1)
    console = Console()
    lm = load(DEFAULT_MODEL)
    OUT.mkdir(exist_ok=True)
    console.print(f"Model: {lm.name}. These are random weights: the text means nothing, the decoding is real.")
    prompt = "Twelve questions at once: "
    table = Table("decoder", "forward passes", "tokens per pass", "seconds", "trace")
    for name in PRESETS:
        view = LiveView(lm, console.file) if name == "dapd-staged" and console.is_terminal else None
        if view is not None:
            with view:
                done: Completion = lm.generate(prompt, strategy=name, max_new_tokens=64, on_step=view.add)
        else:
            done = lm.generate(prompt, strategy=name, max_new_tokens=64)
        path = OUT / f"{name}.jsonl"
        write_traces(path, [done.trace])
        table.add_row(name, str(done.nfe), f"{done.tokens_per_forward:.2f}", f"{done.seconds:.2f}", str(path))
    console.print(table)


if __name__ == "__main__":
    main()
