"""`make demo`: the main job end to end on the model that ships inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape

from dapd.cli import guarded
from dapd.cli.compare import print_rows
from dapd.cli.live import LiveView
from dapd.evaluation.compare import Decoder, Result, decoders
from dapd.evaluation.summary import summarise
from dapd.generation import DEFAULT_MODEL, Completion, DiffusionLM, load
from dapd.io.files import make_folder
from dapd.io.wording import plural
from dapd.lab.tasks import Example, Task, get
from dapd.plots.tradeoff import tradeoff
from dapd.trace import write_traces
from dapd.viewer.report import write_report

OUT = Path("demo")
SIDE_BY_SIDE = {
    "dapd-direct": "DAPD, the whole text at once",
    "fast-dllm:block_length=32": "Fast-dLLM in blocks of 32, the best setting it has",
    "fast-dllm": "Fast-dLLM, the whole text at once: EOS is surest, and crowds the answers out",
}
"""What answers the five questions, with a word on each."""
TABLE = (
    "dapd-direct",
    "dapd-staged",
    "fast-dllm:block_length=32",
    "fast-dllm",
    "eb-sampler:block_length=32",
    "klass:block_length=32",
    "original:block_length=32",
)
SHOWN, COMPARED, PROMPTS = "quiz-5", "quiz-2", 2


def main(out: Path = OUT) -> None:
    """Five questions live with DAPD and with Fast-dLLM in two ways, then more decoders on two questions."""
    torch.set_num_threads(1)
    console, lm = Console(), load(DEFAULT_MODEL, device="cpu")
    make_folder(out)
    written = [*watch(lm, console, out), *compare(lm, console, out)]
    console.print(f"Open {written[0]} in a browser to watch the decoders side by side.", soft_wrap=True)
    console.print(f"Also written: {', '.join(map(str, written[1:]))}", soft_wrap=True)


def watch(lm: DiffusionLM, console: Console, out: Path) -> list[Path]:
    """One prompt of five questions: DAPD as it decodes, its rival after it, and the page with all."""
    task = get(SHOWN)
    (example,) = task.examples(1)
    console.print(f"[bold]The model {lm.name} is asked[/]\n{escape(example.prompt)}\n", highlight=False)
    traces = []
    for spec, words in SIDE_BY_SIDE.items():
        (decoder,) = decoders(spec)
        console.print(f"[bold]{words}[/]", highlight=False)
        with LiveView(lm, console.file) as view:
            (done,) = answers(lm, [example], task, decoder, on_step=view.add)
        if view.quiet:
            console.print(done.text, markup=False, highlight=False)
        console.print(_verdict(decoder.label, done, task.score(example, done.text)))
        traces.append(done.trace)
    return write_report(out, traces, "DAPD beside Fast-dLLM")


def _verdict(name: str, done: Completion, score: float) -> str:
    return (
        f"{name}: {plural(done.nfe, 'forward pass', 'es')} for {done.n_generated} tokens, {done.seconds:.1f} s, "
        f"{score:.0%} of the questions answered correctly\n"
    )


def compare(lm: DiffusionLM, console: Console, out: Path) -> list[Path]:
    """Decoders on the same few prompts: a table, a figure, and the traces."""
    task = get(COMPARED)
    asked = task.examples(PROMPTS)
    results = []
    traces = out / "traces"
    make_folder(traces)
    for decoder in [decoder for spec in TABLE for decoder in decoders(spec)]:
        with console.status(f"{PROMPTS} times two questions with {decoder.label}"):
            done = answers(lm, asked, task, decoder)
        write_traces(traces / f"{decoder.label.replace(' ', '-')}.jsonl", [one.trace for one in done])
        results += [
            _result(decoder, task, i, example, one) for i, (example, one) in enumerate(zip(asked, done, strict=True))
        ]
    rows = summarise(results)
    print_rows(console, rows)
    tradeoff(rows, out / "tradeoff.png")
    return [out / "tradeoff.png", traces]


def answers(
    lm: DiffusionLM,
    asked: Sequence[Example],
    task: Task,
    decoder: Decoder,
    on_step: Callable[..., None] | None = None,
) -> list[Completion]:
    """The completions of some examples, decoded together."""
    prompts = [[{"role": "user", "content": example.prompt}] for example in asked]
    options = replace(decoder.options, record_edges=True)
    return lm.generate_batch(
        prompts, strategy=decoder.setting, max_new_tokens=task.room, options=options, on_step=on_step
    )


def _result(decoder: Decoder, task: Task, index: int, example: Example, done: Completion) -> Result:
    score, seconds = task.score(example, done.text), done.seconds / PROMPTS
    return Result(decoder.label, decoder.family, task.name, index, score, done.nfe, done.n_generated, seconds)


if __name__ == "__main__":
    guarded(main)
