"""`dapd generate`: a completion or a filled template, printed, shown live, or written to a trace."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from dapd.cli.live import LiveView
from dapd.cli.models import Device, Dtype, Fp8, Model, opened
from dapd.cli.prompts import Source
from dapd.decoding import Options
from dapd.errors import DapdError, first_line
from dapd.generation import DEFAULT_MODEL, DEFAULT_NEW_TOKENS, Completion, DiffusionLM
from dapd.io.files import check_writable, parse_json
from dapd.io.wording import plural
from dapd.lab.tasks.rooms import room_for
from dapd.settings import DEFAULT_STRATEGY, Setting, describe, read_settings
from dapd.trace import Trace, write_traces

BATCH = 16
"""Prompts that share a forward pass, at most."""


def generate(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; '-' or nothing reads standard input.")] = None,
    model: Model = DEFAULT_MODEL,
    strategy: Annotated[
        str, typer.Option("--strategy", "-s", help="A preset (`dapd strategies`), NAME:field=value, or my_module:Mine.")
    ] = DEFAULT_STRATEGY,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-new-tokens", "-n", help=f"New tokens; default: what a lab task needs, else {DEFAULT_NEW_TOKENS}."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A field of the strategy or the loop: field=value; may be repeated."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="Read the prompt from a file, or one from each line of a .jsonl file.")
    ] = None,
    messages: Annotated[Path | None, typer.Option(help="A conversation: a file with a JSON list of messages.")] = None,
    system: Annotated[str | None, typer.Option(help="A system message before the prompt.")] = None,
    templates: Annotated[
        list[str] | None,
        typer.Option(
            "--template",
            help="A text with masks to fill: 'It is [MASK*2].'; with a prompt, its answer; may be repeated.",
        ),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw/--chat", help="Continue the text itself / answer it as a chat message.")
    ] = False,
    samples: Annotated[
        int, typer.Option(min=1, help="Number of answers to each prompt; more than one needs --set temperature=...")
    ] = 1,
    stop: Annotated[list[str] | None, typer.Option(help="End the text before this string; may be repeated.")] = None,
    regex: Annotated[str | None, typer.Option(help="A regular expression that the text is certain to match.")] = None,
    json_schema: Annotated[
        Path | None, typer.Option(help="A file with a JSON Schema that the text is certain to follow.")
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Watch the text being unmasked.")] = False,
    pace: Annotated[
        float, typer.Option(min=0, help="With --live: show each pass for at least this many seconds.")
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print each result as a line of JSON.")] = False,
    trace: Annotated[Path | None, typer.Option(help="Write every step to this JSONL file.")] = None,
    edges: Annotated[
        bool, typer.Option("--edges", help="Keep the dependency graphs in the trace (for `dapd view`).")
    ] = False,
    top: Annotated[
        int,
        typer.Option(
            min=0, help="How many of the likeliest tokens to keep for each commit, in the trace and the JSON."
        ),
    ] = 0,
    device: Device = None,
    dtype: Dtype = None,
    fp8: Fp8 = False,
    tensor_parallel: Annotated[
        bool,
        typer.Option(
            "--tensor-parallel", help="Divide one model among the processes of torchrun; only the first prints."
        ),
    ] = False,
) -> None:
    """Complete a prompt, several of them, or fill the masks of a template."""
    source = Source(prompt, file, messages, system, raw)
    silent = tensor_parallel and is_follower(source, templates)
    usual = Options(record_edges=edges, record_top=top, early_stop=not templates)
    chosen, options = read_settings(strategy, settings or [], usual)
    schema = None if json_schema is None else read_schema(json_schema)
    if templates:
        refuse_with_templates(max_new_tokens, regex, schema, samples)
    refuse_without_effect(options, kept=trace is not None, printed=as_json, live=live, pace=pace, samples=samples)
    if trace is not None:
        check_writable(trace, file, messages, json_schema)
    prompts = [] if templates and not source.is_named else source.read()
    lm = opened(model, device, dtype, fp8=fp8, tensor_parallel=tensor_parallel, silent=silent)
    asked = [one for one in source.asked(lm, prompts) for _ in range(samples)]
    single = len(asked) <= 1 and len(templates or ()) <= 1
    visible = live and single and sys.stdout.isatty() and not as_json and not silent
    view = LiveView(lm, sys.stdout, pace=pace) if visible else None
    on_step = None if view is None else view.add
    with view or nullcontext():
        if templates:
            if len(asked) > 1:
                raise DapdError("templates are filled as the answer to one prompt; several were given")
            done = lm.infill_batch(
                templates, prompt=asked[0] if asked else None, strategy=chosen, options=options, on_step=on_step
            )
        else:
            done = lm.generate_batch(
                asked,
                strategy=chosen,
                max_new_tokens=max(room_for(lm, one) for one in prompts) if max_new_tokens is None else max_new_tokens,
                batch_size=BATCH,
                options=options,
                on_step=on_step,
                regex=regex,
                json_schema=schema,
            )
    if silent:
        return
    done = [one.cut_at(stop or ()) for one in done]
    for one in done:
        show(one, chosen, lm, as_json=as_json, shown=view is not None, paced=pace > 0)
    if lm.name.startswith("random:") and not as_json:
        print("note: these are random weights; the text means nothing", file=sys.stderr)
    if trace is not None:
        write_traces(trace, [one.trace for one in done])


def is_follower(source: Source, templates: Sequence[str] | None) -> bool:
    """Whether this is one of the processes of torchrun that only help; all of them must know the prompt."""
    if source.reads_standard_input and not templates:
        raise DapdError("with --tensor-parallel every process reads the prompt: give it as an argument or with --file")
    return os.environ.get("RANK", "0") != "0"


def refuse_without_effect(
    options: Options, *, kept: bool, printed: bool, live: bool, pace: float, samples: int
) -> None:
    """Refuse options that would change nothing; `kept` is whether there is a trace, `printed` whether there is JSON."""
    if options.record_edges and not kept:
        raise DapdError("--edges keeps dependency graphs in the trace; name a file for it with --trace")
    if options.record_top and not kept and not printed:
        raise DapdError("--top keeps the likeliest tokens in the trace and the JSON; add --trace FILE or --json")
    if pace and not live:
        raise DapdError("--pace slows down what --live shows; add --live")
    if samples > 1 and options.sampling.temperature == 0:
        raise DapdError("several samples are all the same without a temperature: add --set temperature=0.7")


def refuse_with_templates(max_new_tokens: int | None, regex: str | None, schema: Any, samples: int) -> None:
    """Refuse options that a template would ignore: it determines its own length and form."""
    if regex is not None or schema is not None:
        raise DapdError("a form (--regex, --json-schema) is for a generated text, not for a template")
    if max_new_tokens is not None:
        raise DapdError("a template has as many new tokens as masks; leave out -n")
    if samples > 1:
        raise DapdError("--samples is for prompts; a template may be repeated instead")


def read_schema(path: Path) -> Any:
    """The JSON of a file; whether it is a schema is checked where it is used."""
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DapdError(f"cannot read the schema from {path}: {error.strerror}") from None
    except ValueError as error:
        raise DapdError(f"{path} is not JSON: {first_line(error)}") from None


def show(done: Completion, chosen: Setting, lm: DiffusionLM, *, as_json: bool, shown: bool, paced: bool) -> None:
    if as_json:
        content = {
            "text": done.text,
            "finish_reason": done.finish_reason,
            **done.trace.summary(),
            "model": lm.name,
            "strategy": describe(chosen.strategy),
            "ids": done.ids,
            **({"tokens": done.trace.commits()} if done.trace.has_top else {}),
        }
        print(json.dumps(content, ensure_ascii=False))
        return
    if not shown:
        print(done.text)
    print(cost(done, paced=paced), file=sys.stderr)
    if (reason := why_empty(done.trace)) is not None:
        print(f"note: {reason}", file=sys.stderr)


def why_empty(trace: Trace) -> str | None:
    """Why a text is empty, and what to try; None if it is not empty, or if it is a template's."""
    if trace.n_generated or not trace.open_ended or not trace.complete:
        return None
    step = next((one["pass"] for one in trace.commits() if one["position"] == trace.start), trace.nfe)
    return (
        f"the text is empty: EOS was decided at its first position, in pass {step} of {trace.nfe}. EOS that spreads "
        "from the end of the canvas is held back by --set eos=defer, by blocks (--set block_length=32), or by fewer "
        "new tokens (-n)"
    )


def cost(done: Completion, *, paced: bool = False) -> str:
    """What a completion took, in a line. Seconds for which it was slowed down to be watched do not count."""
    seconds = done.compute_seconds if paced else done.seconds
    passes = plural(done.nfe, "forward pass", "es")
    tokens = plural(done.n_generated, "token")
    return f"{passes}, {tokens} ({done.tokens_per_forward:.2f} per pass), {seconds:.2f} s, {done.finish_reason}"
