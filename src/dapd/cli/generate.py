"""`dapd generate`: a completion or a filled template, printed, shown live, or written down."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from dapd.cli.live import LiveView, plural
from dapd.errors import DapdError, first_line
from dapd.files import check_writable, parse_json
from dapd.generation import DEFAULT_MODEL, Completion, DiffusionLM, load
from dapd.models.devices import pick_dtype
from dapd.settings import Setting, describe, read_settings
from dapd.trace import write_traces

SMALL = 50_000_000
"""Parameters under which a model counts as small."""


def generate(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; '-' or nothing reads standard input.")] = None,
    model: Annotated[str, typer.Option("--model", "-m", help="lab, folder, hub id, or random:SHAPE.")] = DEFAULT_MODEL,
    strategy: Annotated[str, typer.Option("--strategy", "-s", help="See `dapd strategies`.")] = "dapd-staged",
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", "-n", help="New tokens.")] = 128,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="field=value of the strategy or the loop; may be repeated.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Read the prompt from a file.")] = None,
    templates: Annotated[
        list[str] | None,
        typer.Option("--template", help="Fill a text, 'It is [MASK*2].'; with a prompt, its answer. May be repeated."),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw/--chat", help="Continue the text itself / answer it as a chat.")] = False,
    regex: Annotated[str | None, typer.Option(help="A regular expression that the text is certain to match.")] = None,
    json_schema: Annotated[
        Path | None, typer.Option(help="A file with a JSON Schema that the text is certain to keep.")
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Watch the text being unmasked.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    trace: Annotated[Path | None, typer.Option(help="Write every step to this JSONL file.")] = None,
    edges: Annotated[bool, typer.Option("--edges", help="Keep the dependency graphs in the trace.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...; default: a GPU if there is one.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None,
    fp8: Annotated[bool, typer.Option("--fp8", help="Linear layers in fp8, an approximation (L4, H100, ...).")] = False,
) -> None:
    """Complete a prompt, or fill the masks of a template."""
    chosen, options = read_settings(strategy, settings or [])
    options = dataclasses.replace(options, record_edges=edges)
    schema = None if json_schema is None else read_schema(json_schema)
    if templates and (regex is not None or schema is not None):
        raise DapdError("a form (--regex, --json-schema) is for a generated text, not for a template")
    if trace is not None:
        check_writable(trace)
    text = None if templates and prompt is None and file is None else read_prompt(prompt, file)
    lm = load(model, device=device, dtype=pick_dtype(dtype), fp8=fp8)
    calm_threads(lm)
    view = LiveView(lm, sys.stdout) if live and sys.stdout.isatty() and not as_json else None
    on_step = None if view is None else view.add
    asked = text if text is None or raw else lm.question(text)
    with view or nullcontext():
        if templates:
            done = lm.infill_batch(templates, prompt=asked, strategy=chosen, options=options, on_step=on_step)
        else:
            assert asked is not None
            one = lm.generate(
                asked,
                strategy=chosen,
                max_new_tokens=max_new_tokens,
                options=options,
                on_step=on_step,
                regex=regex,
                json_schema=schema,
            )
            done = [one]
    for number, one in enumerate(done):
        show(one, chosen, lm, as_json=as_json, shown=view is not None and number == 0)
    if lm.name.startswith("random:") and not as_json:
        print("note: these are random weights; the text means nothing", file=sys.stderr)
    if trace is not None:
        write_traces(trace, [one.trace for one in done])


def read_schema(path: Path) -> Any:
    """The JSON of a file; what it says is checked where it is used."""
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DapdError(f"cannot read the schema from {path}: {error.strerror}") from None
    except ValueError as error:
        raise DapdError(f"{path} is not JSON: {first_line(error)}") from None


def calm_threads(lm: DiffusionLM) -> None:
    """One thread for a small model on a CPU: several of them wait for each other longer than the arithmetic takes."""
    small = sum(p.numel() for p in getattr(lm.network, "parameters", list)()) < SMALL
    if small and lm.network.device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


def read_prompt(prompt: str | None, file: Path | None) -> str:
    if prompt not in (None, "-") and file is not None:
        raise DapdError("a prompt and a --file were given; give one of them")
    if file is not None:
        try:
            return file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise DapdError(f"cannot read the prompt from {file}: {error}") from None
    if prompt not in (None, "-"):
        if not str(prompt).strip():
            raise DapdError("the prompt is empty")
        return str(prompt)
    if sys.stdin.isatty():
        raise DapdError("no prompt: give one as an argument, with --file, or on standard input")
    try:
        text = sys.stdin.read().strip()
    except UnicodeDecodeError as error:
        raise DapdError(f"cannot read the prompt from standard input: {error}") from None
    if not text:
        raise DapdError("the prompt is empty")
    return text


def show(done: Completion, chosen: Setting, lm: DiffusionLM, *, as_json: bool, shown: bool) -> None:
    if as_json:
        content = {
            "text": done.text,
            "finish_reason": done.finish_reason,
            **done.trace.summary(),
            "model": lm.name,
            "strategy": describe(chosen.strategy),
            "ids": done.ids,
        }
        print(json.dumps(content, ensure_ascii=False))
        return
    if not shown:
        print(done.text)
    print(told(done), file=sys.stderr)


def told(done: Completion) -> str:
    """What a completion took, in a line."""
    passes, tokens = plural(done.nfe, "forward pass", "es"), plural(done.n_generated, "token")
    return f"{passes}, {tokens} ({done.tokens_per_forward:.2f} per pass), {done.seconds:.2f} s, {done.finish_reason}"
