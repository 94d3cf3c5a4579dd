"""`make demo`: the main job end to end on models that need no download."""

from __future__ import annotations

from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from dapd.cli.live import LiveView
from dapd.generation import DEFAULT_MODEL, DiffusionLM, load
from dapd.mrf.adapter import ToyLM
from dapd.mrf.decoders import QUICK, contenders, decode_with
from dapd.mrf.storage import SHIPPED, load_run
from dapd.strategies import PRESETS
from dapd.trace import Trace, write_traces
from dapd.viewer.report import write_report

OUT = Path("demo")
PROMPT = "Five questions at once: "
SIDE_BY_SIDE = ("dapd-direct", "fast-dllm")


def main() -> None:
    """The trained toy model with every decoder, then a text: live, as a table, as traces, a page and figures."""
    torch.set_num_threads(1)
    console = Console()
    decode_toy(console)
    lm = load(DEFAULT_MODEL)
    console.print(f"Model: {lm.name}. These are random weights: the text means nothing, the decoding is real.")
    with LiveView(lm, console.file) as view:
        lm.generate(PROMPT, strategy="dapd-direct", max_new_tokens=64, on_step=view.add)
    traces = decode_all(lm, console)
    pages = write_report(OUT, [traces[name] for name in SIDE_BY_SIDE], f"{SIDE_BY_SIDE[0]} beside {SIDE_BY_SIDE[1]}")
    console.print(
        f"Open {pages[0]} in a browser to watch it; figures: {', '.join(map(str, pages[1:]))}", soft_wrap=True
    )


def decode_toy(console: Console) -> None:
    """The shipped toy model: nine tokens under four constraints, so that it shows whether a decoder broke something."""
    model = ToyLM(load_run(SHIPPED).network)
    table = Table("decoder", "setting", "forward passes", "samples without a broken constraint")
    for contender in contenders():
        if (contender.family, contender.setting) in QUICK:
            row = decode_with(model, contender, 200)
            table.add_row(row.family, row.setting, f"{row.forwards:.2f}", f"{row.valid:.1%}")
    console.print("The trained toy model of the paper's section 3.2, 200 samples each (docs/toy.md says more):")
    console.print(table)


def decode_all(lm: DiffusionLM, console: Console) -> dict[str, Trace]:
    """One trace of every preset, written to a file each, and a table of what they cost."""
    OUT.mkdir(exist_ok=True)
    traces = {}
    table = Table("decoder", "forward passes", "tokens per pass", "seconds", "trace")
    for name in PRESETS:
        done = lm.generate(PROMPT, strategy=name, max_new_tokens=64, record_edges=True)
        path = OUT / f"{name}.jsonl"
        write_traces(path, [done.trace])
        traces[name] = done.trace
        table.add_row(name, str(done.nfe), f"{done.tokens_per_forward:.2f}", f"{done.seconds:.2f}", str(path))
    console.print(table)
    return traces


if __name__ == "__main__":
    main()
