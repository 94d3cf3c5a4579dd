"""`dapd diff`: two decodings compared pass by pass."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dapd.cli import tables
from dapd.errors import DapdError
from dapd.evaluation.parting import Decision, Likeness, likeness, settings_apart
from dapd.io.table import Table
from dapd.io.wording import plural
from dapd.trace import Trace, read_traces

MOST = 12
"""Positions of a pass that are listed."""

File = Annotated[Path, typer.Argument(help="A trace file (`dapd generate --trace`).")]


def diff(first: File, second: File) -> None:
    """Compare two decodings: the settings that differ, the first pass that decides differently, and what each decided.

    Traces are taken in pairs, in the order of the files. The exit code is 0 if all decide the same in every pass, and 1
    if any do not.
    """
    console = Console(soft_wrap=True)
    ours, theirs = read_traces(first), read_traces(second)
    if len(ours) != len(theirs):
        raise DapdError(
            f"{first} holds {plural(len(ours), 'decoding')} and {second} {len(theirs)}; both must hold the same number"
        )
    pairs = list(zip(ours, theirs, strict=True))
    likenesses = [likeness(*pair) for pair in pairs]
    names = ("in the first", "in the second")
    apart = list(
        dict.fromkeys((name, *map(repr, two)) for pair in pairs for name, two in settings_apart(*pair).items())
    )
    if apart:
        tables.show(console, Table(("setting", *names), apart, words=3))
    for row, (pair, one) in enumerate(zip(pairs, likenesses, strict=True), 1):
        console.print(_line(f"row {row}: " if len(pairs) > 1 else "", pair, one), markup=False, highlight=False)
    parted = next((one.parting for one in likenesses if one.parting is not None), None)
    if parted is None:
        return
    rows = [(str(at), *map(_said, decisions)) for at, decisions in parted.decisions.items()]
    more = f", {MOST} of {len(rows)} positions" if len(rows) > MOST else ""
    tables.show(console, Table(("position", *names), rows[:MOST], f"pass {parted.step}{more}", words=3))
    raise typer.Exit(1)


def _line(who: str, pair: Sequence[Trace], one: Likeness) -> str:
    """How far the two traces of a pair agree, in a line."""
    passes = " and ".join(str(trace.nfe) for trace in pair)
    near = f"confidences within {one.drift:.2g}"
    if one.parting is None:
        return f"{who}the same in all {pair[0].nfe} passes, {near}"
    same = plural(one.parting.step - 1, "pass", "es")
    begin = f"the same for {same} ({near}), then" if one.parting.step > 1 else "from the first pass on"
    return (
        f"{who}{begin} they part; in the end {one.tokens} of {plural(len(pair[0].slots), 'token')} differ, "
        f"in {passes} passes"
    )


def _said(decision: Decision | None) -> str:
    if decision is None:
        return "not decided"
    if decision.confidence is None:
        return "end of the text"
    token = f"id {decision.token}" if decision.text is None else repr(decision.text)
    return f"{token}, {decision.confidence:.4f}"
