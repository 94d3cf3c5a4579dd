"""`dapd bench`: time and memory of forward passes, steps and generations, compared with the floor and the targets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.text import Text

from dapd.bench import canvas as growth
from dapd.bench import targets as goals
from dapd.bench.cases import CAPTURES, NAIVE, Bench, Case, Record, guarded
from dapd.bench.floor import matmul_rate
from dapd.bench.models import bench_model
from dapd.bench.parity import parity
from dapd.bench.report import Report
from dapd.bench.stream import Load, first_generations, stream
from dapd.bench.timing import clear
from dapd.cli import tables
from dapd.cli.models import Device, Dtype, calm_threads
from dapd.errors import DapdError, unknown
from dapd.generation import DEFAULT_MODEL, DiffusionLM
from dapd.lab.tasks import get
from dapd.models.devices import pick_device, pick_dtype
from dapd.models.fp8 import check_fp8
from dapd.own_models import load_named
from dapd.settings import named

app = typer.Typer(
    help="Measure forward passes, steps and whole generations. Lists are separated by commas.",
    no_args_is_help=True,
)

Model = Annotated[
    str, typer.Option("--model", "-m", help="As in `dapd generate`; or random:lab, random weights in the lab's shape.")
]
Fp8 = Annotated[
    bool, typer.Option("--fp8", help="Use fp8 for linear layers (L4, H100, ...); floors remain those of bf16.")
]
Prompt = Annotated[str, typer.Option(help="Prompt lengths, in tokens.")]
Gen = Annotated[str, typer.Option(help="Numbers of new tokens.")]
Batch = Annotated[str, typer.Option(help="Batch sizes.")]
Strategies = Annotated[
    str, typer.Option(help="Decoders; naive and naive-pairs are plain implementations to compare with.")
]
ReuseModes = Annotated[
    str, typer.Option("--reuse", help="Which keys and values are kept: none, prefix, dual, settled.")
]
Refresh = Annotated[int | None, typer.Option(help="Steps from one full pass to the next; default: 8, with dual none.")]
RefreshUntil = Annotated[int | None, typer.Option(help="Number of steps of a block after which no full pass is made.")]
Block = Annotated[int | None, typer.Option(help="Columns per block; default: one block, with dual 32.")]
Settle = Annotated[int | None, typer.Option(help="With reuse settled: number of passes after which a token is reused.")]
Graphs = Annotated[str, typer.Option(help="CUDA graphs: auto, on, off.")]
Taken = Annotated[int | None, typer.Option(min=1, help="DAPD: choose tau so that about N positions are independent.")]
Repeats = Annotated[int, typer.Option(help="Number of timed calls.")]
Warmup = Annotated[int, typer.Option(help="Number of calls before the timed ones.")]
Json = Annotated[Path | None, typer.Option("--json", help="Also write the JSON line to this file, after every row.")]


NEW_LENGTHS = "200,213,230,250,271,291"
"""Prompt lengths at which a first generation is timed."""

WIDTH = 160
"""Width of the output, in characters, where it does not go to a terminal."""


def names(text: str) -> list[str]:
    """The entries of a list separated by commas."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise DapdError(f"the list {text!r} is empty; separate entries by commas")
    return parts


def lengths(option: str, text: str) -> list[int]:
    """The numbers of a list separated by commas."""
    for part in names(text):
        if not part.isdecimal():
            raise DapdError(f"--{option} holds {part!r}; give whole numbers separated by commas, such as 256,1024")
    return [int(part) for part in names(text)]


def switch(graphs: str) -> bool | None:
    choices = {"auto": None, "on": True, "off": False}
    if graphs not in choices:
        raise unknown("value of --graphs", graphs, choices)
    return choices[graphs]


def check_counts(repeats: int, warmup: int) -> None:
    if repeats < 1 or warmup < 0:
        raise DapdError(f"repeats is {repeats} and warmup {warmup}; repeats must be at least 1, warmup at least 0")


def check_precision(device: torch.device, dtype: torch.dtype | None, asked: list[str]) -> None:
    """Refuse what fp8 does not allow, before a model is loaded."""
    check_fp8(device, dtype)
    for name in ("eager", *NAIVE):
        if name in asked:
            raise DapdError(f"the naive path has no fp8; leave {name} out")


def cases(prompt: str, gen: str, batch: str, strategies: list[str], reuse: list[str], **common: Any) -> list[Case]:
    """All combinations. The defaults depend on the reuse: prefix and settled are refreshed, and dual has blocks."""
    refresh = common.pop("refresh")
    block = common.pop("block")
    shapes = product(lengths("prompt", prompt), lengths("gen", gen), lengths("batch", batch))
    return [
        Case(
            strategy,
            *shape,
            reuse=mode,
            refresh=refresh if refresh is not None or mode in ("none", "dual") else 8,
            block=min(32, shape[1]) if block is None and mode == "dual" else block,
            **common,
        )
        for shape, strategy, mode in product(shapes, strategies, reuse)
    ]


def prepared(
    model: str, where: torch.device, dtype: str | None, report: Report, *, fp8: bool = False, **counts: int
) -> Bench:
    """The model, and the rate of matrix products from which its floors are computed."""
    network = bench_model(model, where, pick_dtype(dtype), fp8=fp8)
    calm_threads(network)
    rate = matmul_rate(network.device, network.dtype)
    report.rates.append(rate)
    return Bench(network, model, rate, **counts)


def check_lengths(bench: Bench, asked: list[Case]) -> None:
    """Refuse lengths that the model cannot hold, before the first pass."""
    longest = max(asked, key=lambda case: case.length)
    if longest.length > bench.model.max_length:
        raise DapdError(
            f"--prompt {longest.prompt} and --gen {longest.gen} need {longest.length} columns; {bench.name} takes at "
            f"most {bench.model.max_length}"
        )


def begin(name: str, where: torch.device, json: Path | None, save_table: Sequence[Path] | None) -> Report:
    """A report, after a check that the files which are asked for can be written."""
    tables.check_files(save_table)
    return Report(name, where, json)


def finish(report: Report, save_table: Sequence[Path] | None) -> None:
    """Print the tables, what went wrong, and the line for programs; write the files."""
    console = Console()
    console = console if console.is_terminal else Console(width=WIDTH)
    for floor in report.floors():
        console.print(floor, highlight=False)
    for table in report.tables():
        tables.show(console, table)
    for failure in report.failures():
        console.print(Text(f"failed: {failure}"), style="red", soft_wrap=True)
    print(report.line())
    tables.save(save_table, *report.tables())
    if report.failed:
        raise typer.Exit(1)


def measure_all(report: Report, bench: Bench, asked: list[Case], measure: Callable[[Case], Record]) -> None:
    check_lengths(bench, asked)
    for case in asked:
        otherwise = {"kind": report.name, "model": bench.name, **vars(case)}
        report.add(guarded(lambda case=case: measure(case), otherwise, bench.device))  # type: ignore[misc]


@app.command("forward")
def forward_command(
    model: Model = DEFAULT_MODEL,
    device: Device = None,
    dtype: Dtype = None,
    fp8: Fp8 = False,
    prompt: Prompt = "256",
    gen: Gen = "256",
    batch: Batch = "1",
    capture: Annotated[str, typer.Option(help=f"Ways to capture attention: {', '.join(CAPTURES)}.")] = "none,auto",
    graphs: Graphs = "off",
    repeats: Repeats = 15,
    warmup: Warmup = 5,
    json: Json = None,
    save_table: tables.SaveTable = None,
) -> None:
    """Time forward passes, with and without attention capture. --graphs on records each one as a CUDA graph."""
    check_counts(repeats, warmup)
    where = pick_device(device)
    methods = names(capture)
    graph = bool(switch(graphs))
    if graph and where.type != "cuda":
        raise DapdError(f"--graphs on needs a CUDA device, not {where}; leave it out")
    for method in methods:
        if method not in CAPTURES:
            raise unknown("capture method", method, CAPTURES)
    asked = cases(prompt, gen, batch, ["original"], ["none"], refresh=None, block=None)
    if fp8:
        check_precision(where, pick_dtype(dtype), methods)
    report = begin("forward", where, json, save_table)
    bench = prepared(model, where, dtype, report, fp8=fp8, warmup=warmup, repeats=repeats)
    check_lengths(bench, asked)
    for case, method in product(asked, methods):
        otherwise = {"kind": "forward", "model": model, **vars(case), "strategy": None, "capture": method}
        measure = lambda case=case, method=method: bench.forward(case, method, graph=graph)  # noqa: E731
        report.add(guarded(measure, otherwise, where))
    finish(report, save_table)


@app.command("step")
def step_command(
    model: Model = DEFAULT_MODEL,
    device: Device = None,
    dtype: Dtype = None,
    fp8: Fp8 = False,
    prompt: Prompt = "256",
    gen: Gen = "256",
    batch: Batch = "1",
    strategies: Strategies = "original,dapd-staged",
    reuse: ReuseModes = "none",
    refresh: Refresh = None,
    refresh_until: RefreshUntil = None,
    block: Block = None,
    settle: Settle = None,
    graphs: Graphs = "auto",
    taken: Taken = None,
    repeats: Repeats = 15,
    warmup: Warmup = 5,
    json: Json = None,
    save_table: tables.SaveTable = None,
) -> None:
    """Time single steps (forward, observe, select, commit) of each decoder on a half-masked canvas."""
    check_counts(repeats, warmup)
    where = pick_device(device)
    on = switch(graphs)
    kept = {"refresh": refresh, "refresh_until": refresh_until, "block": block, "settle": settle}
    asked = cases(prompt, gen, batch, names(strategies), names(reuse), graphs=on, taken=taken, **kept)
    if fp8:
        check_precision(where, pick_dtype(dtype), names(strategies))
    report = begin("step", where, json, save_table)
    bench = prepared(model, where, dtype, report, fp8=fp8, warmup=warmup, repeats=repeats)
    measure_all(report, bench, asked, bench.step)
    finish(report, save_table)


@app.command("decode")
def decode_command(
    model: Model = DEFAULT_MODEL,
    device: Device = None,
    dtype: Dtype = None,
    fp8: Fp8 = False,
    prompt: Prompt = "256",
    gen: Gen = "256",
    batch: Batch = "1",
    strategies: Strategies = "original,dapd-staged",
    reuse: ReuseModes = "none",
    refresh: Refresh = None,
    refresh_until: RefreshUntil = None,
    block: Block = None,
    settle: Settle = None,
    graphs: Graphs = "auto",
    taken: Taken = None,
    steps: Annotated[int, typer.Option(help="Steps of a generation, spread evenly over the blocks.")] = 45,
    repeats: Repeats = 3,
    warmup: Warmup = 2,
    json: Json = None,
    save_table: tables.SaveTable = None,
) -> None:
    """Time whole generations in a fixed number of steps: tokens per second, counting new tokens that are not EOS."""
    check_counts(repeats, warmup)
    where = pick_device(device)
    on = switch(graphs)
    kept = {"refresh": refresh, "refresh_until": refresh_until, "block": block, "settle": settle}
    asked = cases(prompt, gen, batch, names(strategies), names(reuse), graphs=on, taken=taken, **kept)
    least = min(case.gen for case in asked)
    if not 1 <= steps <= least:
        raise DapdError(f"steps is {steps}; allowed: 1 to the {least} new tokens")
    if fp8:
        check_precision(where, pick_dtype(dtype), names(strategies))
    report = begin("decode", where, json, save_table)
    bench = prepared(model, where, dtype, report, fp8=fp8, warmup=warmup, repeats=repeats)
    measure_all(report, bench, asked, lambda case: bench.decode(case, steps))
    finish(report, save_table)


@app.command("stream")
def stream_command(
    model: Model = DEFAULT_MODEL,
    device: Device = None,
    dtype: Dtype = None,
    prompts: Annotated[int, typer.Option(help="Prompts that go through the places.")] = 48,
    shortest: Annotated[int, typer.Option(help="Tokens of the shortest prompt.")] = 64,
    longest: Annotated[int, typer.Option(help="Tokens of the longest prompt.")] = 448,
    gen: Annotated[int, typer.Option(help="New tokens of every prompt.")] = 256,
    places: Annotated[int, typer.Option(help="Rows decoded at a time.")] = 8,
    first: Annotated[str, typer.Option(help="Prompt lengths of first generations; empty: none.")] = NEW_LENGTHS,
    steps: Annotated[int, typer.Option(min=1, help="Passes of a first generation.")] = 45,
    repeats: Repeats = 15,
    warmup: Warmup = 5,
    json: Json = None,
    save_table: tables.SaveTable = None,
) -> None:
    """Time a queue of unequal prompts that share a few places, and compare it with fixed batches and the ideal time.

    Then time the first generation at each of some new prompt lengths.

    If the model takes fewer tokens than these need, all lengths are divided by the same whole number.
    """
    check_counts(repeats, warmup)
    load = Load(prompts, shortest, longest, gen, places)
    asked = lengths("first", first) if first else []
    where = pick_device(device)
    report = begin("stream", where, json, save_table)
    bench = prepared(model, where, dtype, report, warmup=warmup, repeats=repeats)
    load, by = load.fitting(bench.model.max_length)
    for record in first_generations(bench, [max(1, length // by) for length in asked], load.gen, steps):
        report.add(record)
    for record in stream(bench, load):
        report.add(record)
    finish(report, save_table)


@app.command("targets")
def targets_command(
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", help="Models, separated by commas; lab is measured on the CPU. Default: all that fit here."
        ),
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
    repeats: Repeats = 15,
    warmup: Warmup = 5,
    rounds: Annotated[int, typer.Option(help="How often the cases of a comparison are measured in turn.")] = 7,
    divide: Annotated[int, typer.Option(help="Divide all lengths by this, to try the command on a CPU.")] = 1,
    json: Json = None,
    save_table: tables.SaveTable = None,
) -> None:
    """Measure every target of speed and memory: its limit, the value measured, and whether the target is met."""
    check_counts(repeats, warmup)
    if rounds < 1 or divide < 1:
        raise DapdError(f"rounds is {rounds} and divide {divide}; both must be at least 1")
    where = pick_device(device)
    large = ["random:llada-8b", "random:dream-7b"] if where.type == "cuda" else []
    report = begin("targets", where, json, save_table)
    for name in names(model) if model is not None else [*large, "lab"]:
        lab = name == "lab"
        listed = goals.CPU_TARGETS if lab else goals.MODEL_TARGETS
        place = torch.device("cpu") if lab else where
        bench = prepared(name, place, None if lab else dtype, report, warmup=warmup, repeats=repeats)
        asked = [target.divided(divide) if divide > 1 else target for target in listed]
        for record in goals.measure(bench, asked, rounds=rounds):
            report.add(record)
        del bench
        clear(place)  # the next model needs the room
    finish(report, save_table)


@app.command("canvas")
def canvas_command(
    columns: Annotated[str, typer.Option(help="Lengths of the canvas.")] = "256,512,1024,2048,4096",
    repeats: Repeats = 5,
    warmup: Warmup = 2,
    json: Json = None,
    save_table: tables.SaveTable = None,
) -> None:
    """Compare passes of DAPD with plain ones as the canvas grows: a tiny model, one thread of the CPU."""
    check_counts(repeats, warmup)
    asked = lengths("columns", columns)
    least = 2 * (repeats + warmup)
    if min(asked) < least:
        raise DapdError(f"--columns holds {min(asked)}; these passes need at least {least} columns")
    torch.set_num_threads(1)
    report = begin("canvas", torch.device("cpu"), json, save_table)
    bench = growth.tiny(max(asked), warmup=warmup, repeats=repeats)
    for length in asked:
        otherwise = {"kind": "canvas", "model": bench.name, "columns": length}
        report.add(guarded(lambda length=length: growth.measure(bench, length), otherwise, bench.device))  # type: ignore[misc]
    finish(report, save_table)


@app.command("parity")
def parity_command(
    model: Model = DEFAULT_MODEL,
    device: Device = None,
    dtypes: Annotated[
        str, typer.Option(help="Dtypes; every one is also compared with the first.")
    ] = "float32,bfloat16",
    fp8: Annotated[bool, typer.Option("--fp8", help="Compare fp8 layers as well, as one more dtype.")] = False,
    strategies: Annotated[str, typer.Option(help="Decoders.")] = "dapd-staged,dapd-direct",
    task: Annotated[str, typer.Option(help="Lab task that the prompts come from.")] = "quiz",
    prompts: Annotated[int, typer.Option(help="Prompts, decoded as one batch.")] = 8,
    json: Json = None,
    save_table: tables.SaveTable = None,
) -> None:
    """Check whether the fast path (kernels, graphs) decides as the reference path does (torch operations alone)."""
    where = pick_device(device)
    kinds = names(dtypes)
    presets = names(strategies)
    for kind in kinds:
        pick_dtype(kind)
    if fp8:
        check_fp8(where, None)
    for name in presets:
        named(name)
    get(task)
    report = begin("parity", where, json, save_table)

    def loaded() -> Iterator[tuple[str, DiffusionLM]]:
        for kind in kinds:
            yield kind, load_named(model, device=where, dtype=pick_dtype(kind))
        if fp8:
            yield "fp8", load_named(model, device=where, fp8=True)

    for record in parity(loaded(), presets, task, prompts):
        report.add(record)
    finish(report, save_table)
