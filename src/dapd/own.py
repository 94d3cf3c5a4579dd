"""Strategies and models of the user's own, named on the command line as `module:name` or `path/to/file.py:name`.

Only a command that the user types reads such names: they run code. `dapd.setting` and `dapd.load` do not know them.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

from dapd.errors import DapdError, first_line

_PREFIX = "dapd_own_"


def is_own(name: str) -> bool:
    """Whether a name has the form of something of the user's own."""
    module, colon, attribute = name.rpartition(":")
    return bool(colon) and attribute.isidentifier() and (module.endswith(".py") or _is_module(module))


def _is_module(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def find(name: str) -> Any:
    """The object that a name stands for; a class or a function is called without arguments."""
    module, _, attribute = name.rpartition(":")
    source = _from_file(Path(module)) if module.endswith(".py") else _from_path(module)
    if not hasattr(source, attribute):
        raise DapdError(f"{module} has no {attribute!r}")
    thing = getattr(source, attribute)
    if not callable(thing) or (hasattr(thing, "select") and not isinstance(thing, type)):
        return thing
    try:
        return thing()
    except TypeError as error:
        raise DapdError(
            f"{name} cannot be made without arguments: {first_line(error)}; give every field a default"
        ) from None


def files() -> list[Path]:
    """The files of the user's own that were read so far."""
    return [Path(str(module.__file__)) for name, module in sys.modules.items() if name.startswith(_PREFIX)]


def read_again(paths: list[Path]) -> None:
    """Read what another process has read: its objects can be understood then."""
    for path in paths:
        _from_file(path)


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise DapdError(f"there is no file {path}")
    # Registered under a name of its own: dataclasses look their module up, and a file may be called like a package.
    # The name is the same in every process, so that objects travel between them.
    name = f"{_PREFIX}{zlib.crc32(str(path.resolve()).encode(errors='surrogateescape')):08x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise DapdError(f"{path} cannot be imported: {type(error).__name__}: {first_line(error)}") from None
    return module


def _from_path(name: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise DapdError(f"the module {name} cannot be imported: {type(error).__name__}: {first_line(error)}") from None
