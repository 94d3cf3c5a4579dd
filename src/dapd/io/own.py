"""Strategies and models of the user's own, named on the command line as `module:name` or `path/to/file.py:name`.

Only commands that a user types read such names, because they run code. `dapd.setting` and `dapd.load` do not know them.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import sysconfig
import traceback
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import dropwhile
from linecache import getline
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from dapd.errors import DapdError, first_line, unknown
from dapd.io.fields import read_as

_PREFIX = "dapd_own_"
_LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")})
"""Folders of code that the user did not write: the standard library and the installed packages."""
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_sources: set[str] = set()
"""The files of the user's own code that were loaded so far, by the names that tracebacks show."""


class NoModuleError(DapdError):
    """There is no module of the name before the colon, or only a folder of that name."""


class CrashError(DapdError):
    """Code of the user's own failed in another process, which sent this account of it (see `crash`)."""


def is_own(name: str) -> bool:
    """Whether a name has the form in which code of the user's own is named."""
    module, colon, attribute = name.rpartition(":")
    if name.endswith((".py", ".py:")):  # a file alone: `find` says what is missing
        return True
    return bool(colon) and attribute.isidentifier() and (module.endswith(".py") or _is_module(module))


def _is_module(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def make(name: str, texts: Mapping[str, str] | None = None, offers: Mapping[str, Any] | None = None) -> Any:
    """The object that a name stands for: a class or a function is called, anything else is returned as it is.

    `texts` are arguments as they stand on the command line, converted to the types that the function declares.
    `offers` are values that the function gets if it has parameters of these names.
    """
    thing = find(name)
    if not _is_called(thing):
        if texts:
            raise DapdError(f"{name} is not a function, so that {next(iter(texts))} cannot be set")
        return thing
    known = parameters(name)
    arguments = {key: value for key, value in (offers or {}).items() if key in known}
    for key, text in (texts or {}).items():
        if key not in known:
            raise unknown(f"argument of {name}", key, known)
        arguments[key] = read_as(key, text, _hint(known[key]))
    missing = [key for key, one in known.items() if one.default is one.empty and key not in arguments]
    if missing:
        raise DapdError(f"{name} cannot be called without {missing[0]!r}; give it a default")
    try:
        with _neighbours(name.rpartition(":")[0]):
            return thing(**arguments)
    except DapdError:
        raise
    except Exception as error:
        raise DapdError(f"{name} failed: {account(error)}") from None


def find(name: str) -> Any:
    """The object that a name stands for."""
    if name.endswith((".py", ".py:")):
        file = name.removesuffix(":")
        raise DapdError(f"{file} is a file; say what to take from it, as in {file}:NAME")
    module, _, attribute = name.rpartition(":")
    source = _from_file(Path(module)) if module.endswith(".py") else _from_path(module)
    if not hasattr(source, attribute):
        raise DapdError(f"{module} has no {attribute!r}")
    return getattr(source, attribute)


def _is_called(thing: object) -> bool:
    return isinstance(thing, type) or inspect.isroutine(thing)


def parameters(name: str) -> dict[str, inspect.Parameter]:
    """The named parameters of the class or function that a name stands for; none where it is another object."""
    thing = find(name)
    if not _is_called(thing):
        return {}
    try:
        try:
            signature = inspect.signature(thing, eval_str=True)
        except NameError:  # a type that is imported for the type checker alone
            signature = inspect.signature(thing)
    except (TypeError, ValueError):
        raise DapdError(f"{name} does not say which arguments it takes; wrap it in a function of your own") from None
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {key: one for key, one in signature.parameters.items() if one.kind not in several}


def _hint(parameter: inspect.Parameter) -> Any:
    """The type of an argument: as it is declared, else that of its default, else text."""
    if parameter.annotation is not parameter.empty and not isinstance(parameter.annotation, str):
        return parameter.annotation
    return str if parameter.default in (parameter.empty, None) else type(parameter.default)


def files() -> list[Path]:
    """The files that were named as `path/to/file.py:name` and loaded so far."""
    return [Path(str(module.__file__)) for name, module in sys.modules.items() if name.startswith(_PREFIX)]


def sources() -> tuple[str, ...]:
    """The files of all code of the user's own that was loaded so far, those of modules named `module:name` included."""
    return tuple(sorted(_sources))


def read_again(paths: Iterable[Path], sources: Iterable[str]) -> None:
    """Load the files that another process has loaded: its objects can then be unpickled here, and failures in its
    `sources` are reported here as they are there."""
    for path in paths:
        _from_file(path)
    _sources.update(sources)


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise DapdError(f"there is no file {path}")
    # The module is registered because dataclasses look theirs up, and under a name of its own because a file may be
    # called like a package. The name is the same in every process, so that objects can be pickled from one to another.
    name = f"{_PREFIX}{zlib.crc32(str(path.resolve()).encode(errors='surrogateescape')):08x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _sources.add(str(module.__file__))
    try:
        with _neighbours(str(path)):
            spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise DapdError(f"{path} cannot be imported: {account(error)}") from None
    return module


@contextmanager
def _neighbours(source: str) -> Iterator[None]:
    """Let a file import the modules in its folder, as `python FILE` does; afterwards `sys.path` is as it was."""
    if not source.endswith(".py"):
        yield
        return
    folder = str(Path(source).resolve().parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with suppress(ValueError):  # the user's code may have removed the folder itself
            sys.path.remove(folder)


def _from_path(name: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(name)
    except Exception as error:
        kind = NoModuleError if isinstance(error, ModuleNotFoundError) and error.name == name else DapdError
        raise kind(f"the module {name} cannot be imported: {account(error)}") from None
    source = getattr(module, "__file__", None)  # a folder and a module that Python is built with have none
    if source is None and hasattr(module, "__path__"):
        raise NoModuleError(f"{name} is a folder of modules; name one of them, as in {name}.my_module:Mine")
    if source is not None:
        _sources.add(source)
    return module


def crash(error: BaseException) -> str | None:
    """An account of a failure in code of the user's own, with the frames of that code; None where none was running."""
    if isinstance(error, CrashError):
        return str(error)
    inner = list(dropwhile(lambda at: at[0].co_filename not in _sources, _frames(error)))
    if not inner:
        return None
    head = f"{inner[0][0].co_qualname} failed: {type(error).__name__}: {first_line(error)}"
    return "\n  ".join(
        [head, *map(_place, _user_frames(inner) or inner[:1])]
    )  # the named code may be an installed package


def _place(at: tuple[CodeType, int]) -> str:
    code, line = at
    text = getline(code.co_filename, line).strip()
    return f"{Path(code.co_filename).name}, line {line}, in {code.co_qualname}: {text}"


def account(error: BaseException) -> str:
    """An error in one line, with the line of the user's code that it came from."""
    theirs = _user_frames(_frames(error))
    where = f" ({Path(theirs[-1][0].co_filename).name}, line {theirs[-1][1]})" if theirs else ""
    return f"{type(error).__name__}: {first_line(error)}{where}"


def _frames(error: BaseException) -> list[tuple[CodeType, int]]:
    """The frames that an error passed through, as code and line number, the outermost first."""
    return [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]


def _user_frames(places: list[tuple[CodeType, int]]) -> list[tuple[CodeType, int]]:
    """The frames whose code the user wrote."""
    return [at for at in places if not at[0].co_filename.startswith(("<", _PACKAGE, *_LIBRARIES))]
