"""`make demo`: five questions, decoded and compared, with the model that ships with the package."""

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
TASK = "quiz-5"
NUMBER = 0
"""Which test prompt is asked: the first one. docs/lab.md has the means over many."""
WATCHED = {
    "dapd-direct": "DAPD, the whole text at once",
    "fast-dllm:block_length=96": "Fast-dLLM in two blocks, its best setting",
    "fast-dllm": "Fast-dLLM, the whole text at once: EOS is surest, and crowds the answers out",
}
"""The decoders that are shown while they answer, each with its heading."""
MORE = ("dapd-staged", "eb-sampler:block_length=96", "klass:block_length=96")
"""Further decoders in the table."""

Answer = tuple[Decoder, Completion]


def main(out: Path = OUT) -> None:
    """Five questions live with DAPD and with Fast-dLLM in two ways, then the same questions with more decoders."""
    torch.set_num_threads(1)
    console = Console()
    lm = load(DEFAULT_MODEL, device="cpu")
    make_folder(out)
    example = get(TASK).examples(NUMBER + 1)[NUMBER]
    watched = watch(lm, console, example)
    written = write_report(out, [done.trace for _, done in watched], "DAPD beside Fast-dLLM")
    written += compare(lm, console, out, example, watched)
    console.print(f"Open {written[0]} in a browser to watch the decoders side by side.", soft_wrap=True)
    console.print(f"Also written: {', '.join(map(str, written[1:]))}", soft_wrap=True)


def watch(lm: DiffusionLM, console: Console, example: Example) -> list[Answer]:
    """The answers of DAPD and of its rival, each shown as it is decoded."""
    console.print(f"[bold]The model {lm.name} is asked[/]\n{escape(example.prompt)}\n", highlight=False)
    watched: list[Answer] = []
    for spec, words in WATCHED.items():
        (decoder,) = decoders(spec)
        console.print(f"[bold]{words}[/]", highlight=False)
        with LiveView(lm, console.file) as view:
            (done,) = answers(lm, [example], get(TASK), decoder, on_step=view.add)
        if view.quiet:
            console.print(done.text, markup=False, highlight=False)
        console.print(_verdict(decoder.label, done, get(TASK).score(example, done.text)))
        watched.append((decoder, done))
    return watched


def _verdict(name: str, done: Completion, score: float) -> str:
    return (
        f"{name}: {plural(done.nfe, 'forward pass', 'es')} for {done.n_generated} tokens, {done.seconds:.1f} s, "
        f"{score:.0%} of the questions answered correctly\n"
    )


def compare(lm: DiffusionLM, console: Console, out: Path, example: Example, watched: Sequence[Answer]) -> list[Path]:
    """The same questions with more decoders: a table, a figure, and the traces."""
    answered = list(watched)
    for decoder in [decoder for spec in MORE for decoder in decoders(spec)]:
        with console.status(f"the same questions with {decoder.label}"):
            (done,) = answers(lm, [example], get(TASK), decoder)
        answered.append((decoder, done))
    traces = out / "traces"
    make_folder(traces)
    for decoder, done in answered:
        write_traces(traces / f"{decoder.label.replace(' ', '-')}.jsonl", [done.trace])
    rows = summarise([_result(decoder, example, done) for decoder, done in answered])
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
    """The completions of some prompts, decoded together, with the graph of every pass in their traces."""
    prompts = [[{"role": "user", "content": example.prompt}] for example in asked]
    options = replace(decoder.options, record_edges=True)
    return lm.generate_batch(
        prompts, strategy=decoder.setting, max_new_tokens=task.room, options=options, on_step=on_step
    )


def _result(decoder: Decoder, example: Example, done: Completion) -> Result:
    score = get(TASK).score(example, done.text)
    return Result(decoder.label, decoder.family, TASK, NUMBER, score, done.nfe, done.n_generated, done.seconds)


if __name__ == "__main__":
    guarded(main)
