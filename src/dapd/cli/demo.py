"""`make demo`: the main job end to end on the model that ships inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape

from dapd.cli import guarded
from dapd.cli.compare import print_rows
from dapd.cli.live import LiveView
from dapd.evaluation.compare import Result
from dapd.evaluation.summary import summarise
from dapd.generation import DEFAULT_MODEL, Completion, DiffusionLM, load
from dapd.io.files import make_folder
from dapd.io.wording import plural
from dapd.lab.tasks import Example, Task, get
from dapd.plots.tradeoff import tradeoff
from dapd.strategies import PRESETS
from dapd.trace import write_traces
from dapd.viewer.report import write_report

OUT = Path("demo")
SIDE_BY_SIDE = ("dapd-direct", "fast-dllm")
SHOWN, COMPARED, PROMPTS = "bundle-5", "bundle-4", 2


def main(out: Path = OUT) -> None:
    """Five questions live, two decoders side by side on them, then every preset on some smaller bundles."""
    torch.set_num_threads(1)
    console, lm = Console(), load(DEFAULT_MODEL, device="cpu")
    make_folder(out)
    written = [*watch(lm, console, out), *compare(lm, console, out)]
    console.print(f"Open {written[0]} in a browser to watch the two decoders side by side.", soft_wrap=True)
    console.print(f"Also written: {', '.join(map(str, written[1:]))}", soft_wrap=True)


def watch(lm: DiffusionLM, console: Console, out: Path) -> list[Path]:
    """One prompt of five questions: DAPD as it decodes, a rival after it, and the page with both."""
    task = get(SHOWN)
    (example,) = task.examples(1)
    console.print(f"[bold]The model {lm.name} is asked[/]\n{escape(example.prompt)}\n", highlight=False)
    traces = []
    for name in SIDE_BY_SIDE:
        with LiveView(lm, console.file) as view:
            (done,) = answers(lm, [example], task, name, on_step=view.add)
        if view.quiet:
            console.print(done.text, markup=False, highlight=False)
        console.print(_verdict(name, done, task.score(example, done.text)))
        traces.append(done.trace)
    return write_report(out, traces, f"{SIDE_BY_SIDE[0]} beside {SIDE_BY_SIDE[1]}")


def _verdict(name: str, done: Completion, score: float) -> str:
    return (
        f"{name}: {plural(done.nfe, 'forward pass', 'es')} for {done.n_generated} tokens, {done.seconds:.1f} s, "
        f"{score:.0%} of the questions answered correctly\n"
    )


def compare(lm: DiffusionLM, console: Console, out: Path) -> list[Path]:
    """Every preset on the same few bundles: a table, a figure, and the traces."""
    task = get(COMPARED)
    asked = task.examples(PROMPTS)
    results = []
    traces = out / "traces"
    make_folder(traces)
    for name in PRESETS:
        with console.status(f"{PROMPTS} bundles of four questions with {name}"):
            done = answers(lm, asked, task, name)
        write_traces(traces / f"{name}.jsonl", [one.trace for one in done])
        results += [
            _result(name, task, i, example, one) for i, (example, one) in enumerate(zip(asked, done, strict=True))
        ]
    rows = summarise(results)
    print_rows(console, rows)
    tradeoff(rows, out / "tradeoff.png")
    return [out / "tradeoff.png", traces]


def answers(
    lm: DiffusionLM,
    asked: Sequence[Example],
    task: Task,
    strategy: str,
    on_step: Callable[..., None] | None = None,
) -> list[Completion]:
    """The completions of some examples, decoded together."""
    prompts = [[{"role": "user", "content": example.prompt}] for example in asked]
    return lm.generate_batch(prompts, strategy=strategy, max_new_tokens=task.room, record_edges=True, on_step=on_step)


def _result(name: str, task: Task, index: int, example: Example, done: Completion) -> Result:
    score, seconds = task.score(example, done.text), done.seconds / PROMPTS
    return Result(name, name, task.name, index, score, done.nfe, done.n_generated, seconds)


if __name__ == "__main__":
    guarded(main)
