"""The process that checks a program: it runs the check, and has the program's functions run in the other process.

From the program's process it takes nothing but values. The result of a call is compared here, with Python's own types,
by a check that the program has never seen. So the verdict "passed" cannot be printed, forged or waited for: only
results that the check accepts lead to it.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import symtable
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from dapd.sandbox.wire import ClosedError, End, GarbageError

MOST_WORDS = 300
SINGLY = 64
"""The number of elements of a program's iterator that are asked for one by one at first: one that the check does not
need may take forever, or change something."""
SIP = 256
"""The number of elements that are asked for at a time after those."""


class Remote:
    """Represents in the examiner an object of the program that is no plain value, such as a function or an iterator.

    It can be called, read, iterated and turned into text or a number, and all of that gives values. It takes no part in
    arithmetic or comparisons with the check's values: an object that calls itself equal to everything must not pass.
    """

    _line: Line
    _number: int

    def __init__(self, line: Line, number: int) -> None:
        object.__setattr__(self, "_line", line)
        object.__setattr__(self, "_number", number)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._line.ask("call", self, *arguments, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__name__", "__doc__"):
            raise AttributeError(name)
        return self._line.ask("attribute", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._line.ask("set attribute", self, name, value)

    def __iter__(self) -> Iterator[Any]:
        take = self._line.ask("iterate", self)
        given = 0
        while True:
            elements, last = _pair(take(1 if given < SINGLY else SIP))
            yield from elements
            if last:
                return
            given += len(elements)

    def __next__(self) -> Any:
        elements, _ = _pair(self._line.ask("iterate", self)(1))
        if not elements:
            raise StopIteration
        return elements[0]

    def __getitem__(self, key: Any) -> Any:
        return self._line.ask("item", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._line.ask("set item", self, key, value)

    def __contains__(self, value: Any) -> bool:
        return self._line.ask("contains", self, value) is True

    def __len__(self) -> int:
        return int(self._line.ask("length", self))

    def __bool__(self) -> bool:
        return self._line.ask("truth", self) is True

    def __str__(self) -> str:
        return str(self._line.ask("text", self))

    def __repr__(self) -> str:
        return str(self._line.ask("words", self))

    def __int__(self) -> int:
        return int(self._line.ask("int", self))

    def __float__(self) -> float:
        return float(self._line.ask("float", self))

    def __hash__(self) -> int:
        return hash(self._number)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remote) and self._line.ask("equal", self, other) is True

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, Remote) and self._line.ask("instance", value, self) is True


def _pair(value: Any) -> tuple[list[Any], bool]:
    if type(value) is not tuple or len(value) != 2 or type(value[0]) is not list:
        raise GarbageError("an iteration that gives no elements")
    return value[0], value[1] is True


class Line(End):
    """The examiner's end of the line: of the check's objects it lends functions alone, for the program to call."""

    stand_ins = Remote

    def __init__(self, reader: int, writer: int) -> None:
        super().__init__(reader, writer)
        self.proxy = lambda number: Remote(self, number)

    def lendable(self, value: Any) -> bool:
        return callable(value)

    def check(self, payload: bytes) -> None:
        """Refuse the one instruction of a pickle that changes an existing object: where functions of the check are
        lent, it could give them other defaults. No honest message holds it."""
        if self._lent:
            import pickletools

            if any(code.name == "BUILD" for code, _, _ in pickletools.genops(payload)):
                raise GarbageError("a message that changes a function of the check")

    def ask(self, operation: str, /, *arguments: Any, **named: Any) -> Any:
        """Have the program do an operation and wait for the result; meanwhile it may call functions of the check."""
        containers = _containers([*arguments, *named.values()])
        self.put(("ask", operation, arguments, named, containers))
        result, changes = self.answer()
        return result if changes is None else _carry_over(containers, changes, result)

    def answer(self) -> tuple[Any, Any]:
        """The program's next answer: a value and the containers that it changed (None: none), or its error, raised."""
        while True:
            message = self.get()
            match message:
                case ("value", value, changes):
                    return value, changes
                case ("raised", str(kind), str(words)):
                    raise _error(kind, words)
                case ("call back", int(number), tuple(arguments), dict(named)):
                    self._call_back(number, arguments, named)
                case _:
                    raise GarbageError("an invalid answer")

    def _call_back(self, number: int, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        try:
            self.put(("value", self._lent[number](*arguments, **named)))
        except (ClosedError, GarbageError):
            raise
        except Exception as error:
            self.put(("raised", type(error).__name__, str(error)))


def _error(kind: str, words: str) -> BaseException:
    own = getattr(builtins, kind, None)
    if isinstance(own, type) and issubclass(own, BaseException):
        try:
            return own(words)
        except TypeError:  # some exceptions need more arguments than a text
            return Exception(f"{kind}: {words}")
    return Exception(f"{kind}: {words}")


def _containers(values: list[Any]) -> list[Any]:
    """Every container within some values that the program could change in place, each once."""
    out: list[Any] = []
    known: set[int] = set()
    todo = values
    while todo:
        one = todo.pop()
        kind = type(one)
        if kind not in (list, tuple, dict, set, bytearray) or id(one) in known:
            continue
        known.add(id(one))
        if kind is not tuple:
            out.append(one)
        if kind is dict:
            todo += one.values()
        elif kind in (list, tuple):
            todo += one
    return out


def _carry_over(originals: list[Any], copies: Any, result: Any) -> Any:
    """Bring the check's own containers into the state in which the program left its copies of them.

    Where the result or a container holds such a copy, it holds the check's own container afterwards, as it would if the
    program ran here.
    """
    same = type(copies) is list and [type(one) for one in copies] == [type(one) for one in originals]
    if not same:
        raise GarbageError("arguments that came back as something else")
    ours = {id(copy): original for copy, original in zip(copies, originals, strict=True)}

    def own(value: Any) -> Any:
        if id(value) in ours:
            return ours[id(value)]
        if type(value) is tuple:
            return tuple(own(one) for one in value)
        if type(value) in (list, dict):
            ours[id(value)] = value
            _fill(value, own)
        return value

    for copy, original in zip(copies, originals, strict=True):
        content = copy.copy()
        original.clear()
        if type(original) is dict:
            original.update(content)
        elif type(original) is set:
            original |= content
        else:
            original += content
    for original in originals:
        _fill(original, own)
    return own(result)


def _fill(container: Any, own: Any) -> None:
    """Replace each element of a container by `own(element)`."""
    if type(container) is list:
        container[:] = [own(one) for one in container]
    elif type(container) is dict:
        container.update({key: own(one) for key, one in container.items()})


class Names(NamedTuple):
    """The names that a check does not define itself."""

    wanted: frozenset[str]
    """Names that it uses and that the program may define."""
    modules: frozenset[str]
    """Modules of the standard library that it uses (`math.isclose`): imported here, never taken from the program."""
    imports: tuple[str, ...]
    """Its own import statements. A program may rely on them: some are written to share a file with their check."""


def names_of(check: str) -> Names:
    """The names that a check does not define itself.

    The name of a builtin means the builtin even where the program defines it, too: otherwise `abs` could be a function
    that always gives 0. Only a check that uses no other name means the program's (MBPP 126 is about a function `sum`).
    """
    tree = ast.parse(check)
    table = symtable.symtable(check, "<check>", "exec")
    used = set(_globals_of(table))
    bound = {one.get_name() for one in table.get_symbols() if one.is_assigned() or one.is_imported()}
    usual = {name for name in used if hasattr(builtins, name)}
    foreign = used - bound - usual
    parts = {
        one.value.id for one in ast.walk(tree) if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name)
    }
    return Names(
        wanted=frozenset(used - usual if foreign else used),
        modules=frozenset(foreign & parts & sys.stdlib_module_names),
        imports=tuple(ast.unparse(one) for one in tree.body if isinstance(one, ast.Import | ast.ImportFrom)),
    )


def _globals_of(table: symtable.SymbolTable) -> Iterator[str]:
    """The global names that a piece of code reads, in all of its functions."""
    outermost = table.get_type() == "module"
    for one in table.get_symbols():
        if one.is_referenced() and (outermost or one.is_global()):
            yield one.get_name()
    for child in table.get_children():
        yield from _globals_of(child)


def examine(line: Line, program: str, check: str) -> str:
    """Run a check against the program at the other end: "passed", or "failed: " and why."""
    try:
        names = names_of(check)
        line.put(("run", program, names.imports, sorted(names.wanted)))
        defined, _ = line.answer()
        if type(defined) is not dict:
            raise GarbageError("an invalid table of names")
        space: dict[str, Any] = {name: value for name, value in defined.items() if name in names.wanted}
        space |= {name: importlib.import_module(name) for name in names.modules & set(space)}
        exec(compile(check, "<check>", "exec", dont_inherit=True), space)
    except ClosedError:
        return "failed: the program ended its process"
    except GarbageError as error:
        return f"failed: the program sent {error}"
    except BaseException as error:
        return f"failed: {_words(error)}"
    return "passed"


def _words(error: BaseException) -> str:
    """An error's text as one line of printable characters: the program may have written it, and a terminal shows it."""
    try:
        words = f"{type(error).__name__}: {error}"[:MOST_WORDS]
    except BaseException:
        words = type(error).__name__
    return "".join(one if one.isprintable() else " " for one in words).rstrip(": ")
