"""The process of the judged program: it runs the program, then does what the examiner asks of it.

Nothing here is trusted once the program has run: it may change this module, answer in its place, or end the process.
But all it can do by that is to send values, and the examiner trusts none of them.
"""

from __future__ import annotations

import builtins
import operator
import sys
from collections.abc import Callable, Iterator
from typing import Any

from dapd.sandbox.wire import ClosedError, End

MOST_WORDS = 300
"""The most characters of an error's text that are sent to the examiner."""


class Callback:
    """Represents a function of the check in the program's process; a call of it runs in the examiner."""

    def __init__(self, line: Line, number: int) -> None:
        self._line = line
        self._number = number

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self._line.put(("call back", self._number, arguments, named))
        kind, *content = self._line.get()
        if kind == "value":
            return content[0]
        raise getattr(builtins, content[0], RuntimeError)(content[1])


class Line(End):
    """The program's end of the line: a handle of any object of the program may be sent."""

    stand_ins = Callback

    def __init__(self, reader: int, writer: int) -> None:
        super().__init__(reader, writer)
        self.proxy = lambda number: Callback(self, number)

    def lendable(self, value: Any) -> bool:
        return True


class Take:
    """An iterator that gives several elements per call; an error is raised only after those before it are given."""

    def __init__(self, elements: Iterator[Any]) -> None:
        self._elements = elements
        self._error: BaseException | None = None

    def __call__(self, count: int) -> tuple[list[Any], bool]:
        """Up to `count` elements, and whether that was all."""
        out: list[Any] = []
        if self._error is not None:
            raise self._error
        try:
            while len(out) < count:
                out.append(next(self._elements))
        except StopIteration:
            return out, True
        except BaseException as error:
            if not out:
                raise
            self._error = error
        return out, False


OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda function, *arguments, **named: function(*arguments, **named),
    "attribute": getattr,
    "set attribute": setattr,
    "iterate": lambda container: Take(iter(container)),
    "item": operator.getitem,
    "set item": operator.setitem,
    "contains": operator.contains,
    "length": len,
    "truth": bool,
    "text": str,
    "words": repr,
    "int": int,
    "float": float,
    "equal": lambda one, other: bool(one == other),
    "instance": isinstance,
}
"""The operations on the program's objects that the examiner may ask for, by name."""


def serve(reader: int, writer: int, news: tuple[str, ...]) -> None:
    """Send `news` (the layers of protection that hold), then run the program and answer until the examiner is gone."""
    line = Line(reader, writer)
    line.put(("ready", news))
    space: dict[str, Any] = {}
    _forget_ourselves()
    try:
        while True:
            kind, *content = line.get()
            answer = _answer(_begin if kind == "run" else _ask, line, space, content)
            try:
                line.put(answer)
            except ClosedError:
                raise
            except BaseException as error:  # an answer that cannot be sent
                line.put(_raised(error))
    except ClosedError:
        return


def _answer(work: Callable[..., tuple[Any, ...]], *arguments: Any) -> tuple[Any, ...]:
    try:
        return work(*arguments)
    except ClosedError:
        raise
    except BaseException as error:
        return _raised(error)


def _begin(line: Line, space: dict[str, Any], content: list[Any]) -> tuple[Any, ...]:
    """Run the program, then the check's imports, which it may rely on; give those of its names that the check uses."""
    program, imports, names = content
    exec(compile(program, "<candidate>", "exec", dont_inherit=True), space)
    for statement in imports:
        try:
            exec(statement, space)
        except Exception:  # the check runs the same import, and its failure is reported there
            continue
    return "value", {name: space[name] for name in names if name in space}, None


def _ask(line: Line, space: dict[str, Any], content: list[Any]) -> tuple[Any, ...]:
    """Do one operation. The containers among its arguments are sent back if the program changed them."""
    operation, arguments, named, containers = content
    before = line.pack(containers) if containers else b""
    result = OPERATIONS[operation](*arguments, **named)
    after = line.pack(containers) if containers else b""
    return "value", result, None if before == after else containers


def _raised(error: BaseException) -> tuple[Any, ...]:
    """An error as an answer: the name of its nearest built-in class, and its text."""
    own = next(kind.__name__ for kind in type(error).__mro__ if getattr(builtins, kind.__name__, None) is kind)
    try:
        words = str(error)
    except BaseException:
        words = ""
    if own != type(error).__name__:
        words = f"{type(error).__name__}: {words}"
    return "raised", own, words[:MOST_WORDS]


def _forget_ourselves() -> None:
    """Leave to the program only the modules and arguments of an interpreter that was just started."""
    sys.argv = [""]
    for name in [name for name in sys.modules if name.partition(".")[0] == "dapd"]:
        del sys.modules[name]
