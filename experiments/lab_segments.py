"""How decoders spread over five questions: segment counts and the heat map of unmasking, on the lab model.

    python experiments/lab_segments.py --out docs/lab/segments --prompts 16

decodes five free-form answers with each decoder and writes segments.png, heatmap.png and segments.json: the mean number
of separate stretches of decided tokens after each tenth of the passes. The paper's figure 5 shows the same for LLaDA.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import torch
import typer

from dapd.cli import run
from dapd.cli.demo import answers
from dapd.evaluation.compare import decoders
from dapd.generation import DEFAULT_MODEL, load
from dapd.io.files import make_folder, write_text
from dapd.lab.tasks import get
from dapd.plots.decoding import heatmap, segments
from dapd.trace import Trace

DECODERS = (
    "original:block_length=32",
    "fast-dllm:block_length=32",
    "fast-dllm",
    "eb-sampler:block_length=32",
    "klass:block_length=32",
    "dapd-staged",
    "dapd-direct",
)
TENTHS = 10


def main(
    out: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path("segments"),
    model: Annotated[str, typer.Option("--model", "-m")] = DEFAULT_MODEL,
    task: Annotated[str, typer.Option(help="Task of the lab.")] = "quiz-5",
    prompts: Annotated[int, typer.Option(help="Test prompts.")] = 16,
    strategies: Annotated[
        list[str] | None, typer.Option("--strategy", "-s", help="Preset with its fields. May be repeated.")
    ] = None,
) -> None:
    """Measure and draw how decoders spread over five questions."""
    torch.set_num_threads(1)
    make_folder(out)
    lm, asked = load(model), get(task).examples(prompts)
    traces: list[Trace] = []
    means: dict[str, list[float]] = {}
    for decoder in [decoder for spec in strategies or DECODERS for decoder in decoders(spec)]:
        name = decoder.label
        own = [done.trace for done in answers(lm, asked, get(task), decoder)]
        means[name] = [round(sum(counts_at(t, i) for t in own) / len(own), 2) for i in range(1, TENTHS + 1)]
        print(f"{name:32}" + "".join(f"{value:7.1f}" for value in means[name]), flush=True)
        traces += own
    segments(traces, out / "segments.png")
    heatmap(traces, out / "heatmap.png")
    content = {"model": lm.name, "task": task, "prompts": prompts, "segments after each tenth of the passes": means}
    write_text(out / "segments.json", json.dumps(content, indent=1) + "\n")


def counts_at(trace: Trace, tenth: int) -> int:
    """Segments once this many tenths of the passes are done."""
    done = max(1, round(len(trace.steps) * tenth / TENTHS))
    return int(trace.steps[done - 1].segments)


if __name__ == "__main__":
    run(main)
