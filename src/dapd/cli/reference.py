"""The page of all commands and settings, made from the code that defines them: `make reference` writes it.

A page written by hand would be wrong after the next change. A test compares docs/commands.md with this page.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from dapd.cli import guarded
from dapd.cli.app import app
from dapd.decoding import Options
from dapd.decoding.sampling import Sampling
from dapd.errors import DapdError
from dapd.io.fields import explain
from dapd.io.files import write_text
from dapd.io.table import Table
from dapd.settings import fields_of
from dapd.strategies import PRESETS

INTRODUCTION = """\
# Commands and settings

Every [command](#commands) with its options, the settings of the [loop](#the-loop) and of [sampling](#sampling), and the
fields of every [decoder](#decoders). The page is made from the code by `make reference`; `dapd COMMAND --help` and
`dapd strategies NAME` show the same in the terminal. An empty default means that the option is off or worked out from
the rest. The [list of words](reference.md#words) says what row, canvas, pass and the like mean;
[strategies.md](strategies.md) describes the loop and the decoders in prose.
"""
LOOP = """\
## The loop

The fields of `dapd.Options`, whatever the decoder: arguments of `generate` and its kin in Python (`block_length=32`),
`--set block_length=32` on the command line.
"""
SAMPLING = """\
## Sampling

The fields of `dapd.Sampling`, which is the field `sampling` of `Options`; they are given in the same way
(`temperature=0.5`, `--set temperature=0.5`).
"""
DECODERS = """\
## Decoders

Names for `--strategy` and `strategy=`. A field is changed with `--set field=value`, in Python with
`dapd.strategy("dapd-staged", tau_max=0.2)`. A bare name has the values below; `name@model/task`
(`dapd-staged@llada/gsm8k`) has those of the paper, which `dapd strategies --paper` lists.
"""


def page() -> str:
    """The page, as Markdown."""
    commands = [_command(name, command) for name, command in _walk("dapd", typer.main.get_command(app))]
    strategies = [_decoder(name) for name in PRESETS]
    parts = [INTRODUCTION, "## Commands\n", *commands, LOOP, _fields(Options), SAMPLING, _fields(Sampling)]
    return "\n".join([*parts, DECODERS, *strategies])


def _walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """The commands with their full names, those of groups included."""
    for part, below in getattr(command, "commands", {}).items():
        yield from _walk(f"{name} {part}", below)
    if not hasattr(command, "commands"):
        yield name, command


def _command(name: str, command: Any) -> str:
    about = " ".join((command.help or "").split())
    if not command.params:
        return f"### `{name}`\n\n{about}\n"
    rows = [(_spelling(option), _value(option), _clean(option.help)) for option in command.params]
    return f"### `{name}`\n\n{about}\n\n{Table(('option', 'default', 'meaning'), rows, words=3).to_markdown()}"


def _spelling(option: Any) -> str:
    if option.param_type_name == "argument":
        return f"`{option.name.upper()}`"
    return ", ".join(f"`{spelling}`" for spelling in (*option.opts, *option.secondary_opts))


def _value(option: Any) -> str:
    """The default of an option as the page shows it; a flag that is off and an empty list show nothing."""
    if option.required:
        return "required"
    value = option.default.value if isinstance(option.default, Enum) else option.default
    nothing = value is None or value is False or value in ("", ())
    return "" if nothing else "on" if value is True else f"`{value}`"


def _clean(text: str | None) -> str:
    return " ".join((text or "").split())


def _fields(kind: type) -> str:
    meanings = explain(kind)
    rows = []
    for field in dataclasses.fields(kind):
        made = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        rows.append((f"`{field.name}`", f"`{_shown(made)}`", _clean(meanings.get(field.name))))
    return Table(("field", "default", "meaning"), rows, words=3).to_markdown()


def _decoder(name: str) -> str:
    strategy = PRESETS[name]
    kind = type(strategy)
    meanings = explain(kind)
    about = f"### `{name}`\n\n`dapd.{kind.__name__}`: {_clean(kind.__doc__)}\n"
    values = fields_of(strategy).items()
    rows = [(f"`{field}`", f"`{_shown(value)}`", _clean(meanings.get(field))) for field, value in values]
    return f"{about}\n{Table(('field', 'value', 'meaning'), rows, words=3).to_markdown()}" if rows else about


def _shown(value: Any) -> str:
    return f"{type(value).__name__}()" if dataclasses.is_dataclass(value) else str(value)


def main() -> None:
    """Write the page to the file that the command line names."""
    if len(sys.argv) != 2:
        raise DapdError("name the file to write: python -m dapd.cli.reference docs/commands.md")
    print(f"wrote {write_text(Path(sys.argv[1]), page())}")


if __name__ == "__main__":
    guarded(main)
