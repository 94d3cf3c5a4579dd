"""`dapd chat`: a conversation in the terminal, each answer shown as it is unmasked."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from dapd.cli.generate import cost
from dapd.cli.live import LiveView
from dapd.cli.models import Device, Dtype, Model, opened
from dapd.errors import DapdError, unknown
from dapd.generation import DEFAULT_MODEL, DiffusionLM
from dapd.io.files import write_text
from dapd.settings import DEFAULT_STRATEGY, describe, read_settings

HELP = """/strategy [NAME [field=value ...]]   show or change how answers are decoded
/tokens [N]                          show or change how many tokens an answer may have
/history                             show the conversation so far
/clear                               forget the conversation
/save FILE                           write the conversation as JSON
/quit                                leave (so does the end of the input)"""


def chat(
    model: Model = DEFAULT_MODEL,
    strategy: Annotated[str, typer.Option("--strategy", "-s", help="As in `dapd generate`.")] = DEFAULT_STRATEGY,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A field of the strategy or the loop: field=value; may be repeated."),
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-n", min=1, help="The most new tokens of an answer.")
    ] = 128,
    system: Annotated[str | None, typer.Option(help="A system message before the conversation.")] = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Talk to a model and watch it write; /help lists the commands."""
    read_settings(strategy, settings or [])  # a mistake is reported before the model is loaded
    lm = opened(model, device, dtype)
    if not lm.tokenizer.has_chat:
        raise DapdError(f"{lm.name} has no chat template; continue texts with: dapd generate --raw")
    talk = Conversation(lm, strategy, settings or [], max_new_tokens, system)
    print(f"{lm.name}, {strategy}. /help lists the commands.", file=sys.stderr)
    while talk.goes_on:
        try:
            said = input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return
        except KeyboardInterrupt:
            print("\n/quit or Ctrl-D ends the conversation", file=sys.stderr)
            continue
        except UnicodeDecodeError as error:
            print(f"error: cannot read standard input: {error}", file=sys.stderr)
            continue
        try:
            talk.take(said.strip())
        except DapdError as error:
            print(f"error: {error}", file=sys.stderr)


class Conversation:
    """The messages so far, and how the next one is made."""

    def __init__(
        self, lm: DiffusionLM, strategy: str, settings: list[str], max_new_tokens: int, system: str | None
    ) -> None:
        self.lm = lm
        self.max_new_tokens = max_new_tokens
        self.opening = [] if system is None else [{"role": "system", "content": system}]
        self.messages = list(self.opening)
        self.goes_on = True
        self._choose(strategy, settings)

    def take(self, said: str) -> None:
        """A line of the user's: a command or a message."""
        if said.startswith("/"):
            self._command(said)
        elif said:
            self._answer(said)

    def _choose(self, strategy: str, settings: list[str]) -> None:
        self.chosen, self.options = read_settings(strategy, [*settings])
        self.strategy = strategy

    def _answer(self, said: str) -> None:
        asked = [*self.messages, {"role": "user", "content": said}]
        view = LiveView(self.lm, sys.stdout)
        try:
            with view:
                done = self.lm.generate(
                    asked,
                    strategy=self.chosen,
                    max_new_tokens=self.max_new_tokens,
                    options=self.options,
                    early_stop=True,
                    on_step=view.add,
                )
        except KeyboardInterrupt:
            print("stopped; the question is forgotten", file=sys.stderr)
            return
        if view.quiet:
            print(done.text)
        self.messages = [*asked, {"role": "assistant", "content": done.text}]
        print(cost(done), file=sys.stderr)

    def _command(self, said: str) -> None:
        name, *words = split(said)
        match name, words:
            case "/strategy", []:
                print(json.dumps({"strategy": self.strategy, **describe(self.chosen.strategy)}))
            case "/strategy", [strategy, *settings]:
                self._choose(strategy, settings)
            case "/tokens", []:
                print(self.max_new_tokens)
            case "/tokens", [number] if re.fullmatch("[0-9]{1,9}", number) and int(number) > 0:
                self.max_new_tokens = int(number)
            case "/history", []:
                for message in self.messages:
                    print(f"{message['role']}: {message['content']}")
            case "/clear", []:
                self.messages = list(self.opening)
            case "/save", [path]:
                content = {"model": self.lm.name, "strategy": self.strategy, "messages": self.messages}
                write_text(Path(path), json.dumps(content, ensure_ascii=False, indent=2) + "\n")
                print(f"wrote {path}", file=sys.stderr)
            case "/help", _:
                print(HELP)
            case "/quit", []:
                self.goes_on = False
            case _:
                commands = [line.split()[0] for line in HELP.splitlines()]
                if name in commands:
                    raise DapdError(next(line for line in HELP.splitlines() if line.startswith(name)))
                raise unknown("command", name, [*commands, "/help"])


def split(said: str) -> list[str]:
    """The words of a command; quotes hold words together."""
    try:
        return shlex.split(said)
    except ValueError as error:
        raise DapdError(f"cannot read the command: {error}") from None
