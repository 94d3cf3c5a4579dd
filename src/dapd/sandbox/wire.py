"""The messages between the process of the judged program and the one that checks it: frames that hold plain values.

The values are pickles that name no class at all, so reading one can build numbers, texts and containers, and nothing
else: no bytes that the judged program may send run code in the examiner or make an object with an equality of its own.
Everything that is not plain is either reduced to a plain value of the same content (a `defaultdict` becomes a `dict`, a
number of NumPy a number) or stays where it is, and a handle of it is sent.
"""

from __future__ import annotations

import importlib
import io
import os
import pickle
import struct
from collections.abc import Callable
from typing import Any

MOST_BYTES = 64 << 20
"""The largest frame that is read: more than any honest answer needs, less than the memory of the reader."""

PLAIN = frozenset({type(None), bool, int, float, str, bytes, bytearray, list, tuple, dict, set, frozenset})
"""Types that a pickle can hold without naming a class. Subclasses do not count: they bring methods of their own."""

TYPES: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        bytearray,
        list,
        tuple,
        dict,
        set,
        frozenset,
        range,
        object,
        type(None),
    )
}
"""Classes that both sides have in any case, and that checks hand over ("all elements of type int")."""


class ClosedError(Exception):
    """The other side has ended, or closed its pipe."""


class GarbageError(Exception):
    """The other side sent something that is not a valid message."""


def send(descriptor: int, payload: bytes) -> None:
    """Write one frame, whole."""
    view = memoryview(struct.pack("<Q", len(payload)) + payload)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError as error:
        raise ClosedError from error


def receive(descriptor: int) -> bytes:
    """Read one frame, whole."""
    (size,) = struct.unpack("<Q", _exactly(descriptor, 8))
    if size > MOST_BYTES:
        raise GarbageError(f"a message of {size} bytes; at most {MOST_BYTES} are read")
    return _exactly(descriptor, size)


def _exactly(descriptor: int, size: int) -> bytes:
    parts = []
    while size:
        try:
            part = os.read(descriptor, min(size, 1 << 20))
        except OSError as error:
            raise ClosedError from error
        if not part:
            raise ClosedError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


class _Pickler(pickle.Pickler):
    """A pickler that asks `tag` about everything that is not plain, and writes the plain tuple that it answers."""

    def __init__(self, file: io.BytesIO, tag: Callable[[Any], tuple[Any, ...]]) -> None:
        super().__init__(file, protocol=5)
        self._tag = tag

    def persistent_id(self, value: Any) -> tuple[Any, ...] | None:
        return None if type(value) in PLAIN else self._tag(value)


class _Unpickler(pickle.Unpickler):
    """An unpickler that knows no class and no function."""

    def __init__(self, file: io.BytesIO, untag: Callable[[tuple[Any, ...]], Any]) -> None:
        super().__init__(file)
        self._untag = untag

    def find_class(self, module: str, name: str) -> Any:
        raise GarbageError(f"a message that names {module}.{name}")

    def persistent_load(self, tag: Any) -> Any:
        if type(tag) is not tuple or not tag or type(tag[0]) is not str:
            raise GarbageError("a message with an invalid tag")
        return self._untag(tag)


class End:
    """One end of the line: it sends and receives values, and numbers the objects whose handles it sends or receives."""

    proxy: Callable[[int], Any]
    """Makes the stand-in for object `n` of the other end, which must hold that number as `_number`."""
    stand_ins: type | tuple[type, ...] = ()
    """The class of the stand-ins that `proxy` makes."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader = reader
        self._writer = writer
        self._lent: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._proxies: dict[int, Any] = {}

    def lendable(self, value: Any) -> bool:
        """Whether a handle of this object may travel."""
        raise NotImplementedError

    def put(self, value: Any) -> None:
        """Send a value."""
        send(self._writer, self.pack(value))

    def check(self, payload: bytes) -> None:
        """Refuse a message before it is read, where the other end may not be trusted with what it could contain."""

    def get(self) -> Any:
        """Wait for a value."""
        payload = receive(self._reader)
        try:
            self.check(payload)
            return _Unpickler(io.BytesIO(payload), self._untag).load()
        except (ClosedError, GarbageError):
            raise
        except Exception as error:  # a pickle that was made by hand can raise anything
            raise GarbageError(f"a message that cannot be read ({type(error).__name__})") from error

    def pack(self, value: Any) -> bytes:
        """A value as the bytes in which it travels."""
        file = io.BytesIO()
        _Pickler(file, self._tag).dump(value)
        return file.getvalue()

    def _tag(self, value: Any) -> tuple[Any, ...]:
        if isinstance(value, self.stand_ins):
            return "yours", object.__getattribute__(value, "_number")
        tag = _content(value)
        if tag is not None:
            return tag
        if not self.lendable(value):
            raise TypeError(f"a check can hand over numbers, texts, containers and functions, but no {type(value)}")
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._lent)
            self._lent.append(value)
        return "mine", self._numbers[id(value)]

    def _untag(self, tag: tuple[Any, ...]) -> Any:
        if tag[0] == "yours":
            return self._lent[int(tag[1])]
        if tag[0] == "mine":
            number = int(tag[1])
            if number not in self._proxies:
                self._proxies[number] = self.proxy(number)
            return self._proxies[number]
        return BUILDERS[tag[0]](*tag[1:])


def _library(module: str, name: str) -> Callable[..., Any]:
    def build(*arguments: Any) -> Any:
        # Some of these classes accept any object that behaves like a number, and trust what it says about itself.
        if not all(type(argument) in PLAIN for argument in arguments):
            raise GarbageError(f"a {name} of parts that are not plain")
        return getattr(importlib.import_module(module), name)(*arguments)

    return build


BUILDERS: dict[str, Callable[..., Any]] = {
    "as": lambda value: value,
    "type": lambda name: TYPES[name],
    "complex": lambda real, imaginary: complex(float(real), float(imaginary)),
    "range": lambda *bounds: range(*bounds),
    "keys": lambda keys: dict.fromkeys(keys).keys(),
    "items": lambda items: dict(items).items(),
    "collections.deque": _library("collections", "deque"),
    "collections.OrderedDict": _library("collections", "OrderedDict"),
    "collections.Counter": _library("collections", "Counter"),
    "fractions.Fraction": _library("fractions", "Fraction"),
    "decimal.Decimal": _library("decimal", "Decimal"),
    "datetime.date": _library("datetime", "date"),
    "datetime.time": _library("datetime", "time"),
    "datetime.datetime": _library("datetime", "datetime"),
    "datetime.timedelta": _library("datetime", "timedelta"),
}
"""Tag -> function that builds the value again from plain parts, by classes of Python's own."""

_CLOCK = ("hour", "minute", "second", "microsecond")

PARTS: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "collections.deque": lambda value: (list(value), value.maxlen),
    "collections.OrderedDict": lambda value: (list(value.items()),),
    "collections.Counter": lambda value: (dict(value),),
    "fractions.Fraction": lambda value: (int(value.numerator), int(value.denominator)),
    "decimal.Decimal": lambda value: (str(value),),
    "datetime.date": lambda value: (value.year, value.month, value.day),
    "datetime.time": lambda value: tuple(getattr(value, name) for name in _CLOCK),
    "datetime.datetime": lambda value: tuple(getattr(value, name) for name in ("year", "month", "day", *_CLOCK)),
    "datetime.timedelta": lambda value: (value.days, value.seconds, value.microseconds),
}
"""Class name -> function that takes a value apart into the plain parts for `BUILDERS`. Time zones are left out."""

BASES: dict[type, Callable[[Any], Any]] = {
    str: lambda value: str.__getitem__(value, slice(None)),
    int: int.__int__,
    float: float.__float__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    list: lambda value: [*list.__iter__(value)],
    tuple: lambda value: (*tuple.__iter__(value),),
    dict: lambda value: {key: dict.__getitem__(value, key) for key in dict.__iter__(value)},
    set: lambda value: {*set.__iter__(value)},
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
}
"""Base class -> function that copies an instance of a subclass into a plain value, by the base's own methods."""


def _content(value: Any) -> tuple[Any, ...] | None:
    """The tag of a value that is not plain but has a plain content; None where only a handle of it can be sent."""
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name in PARTS:
        return name, *PARTS[name](value)
    if kind is complex:
        return "complex", value.real, value.imag
    if kind is range:
        return "range", value.start, value.stop, value.step
    if isinstance(value, type) and TYPES.get(value.__name__) is value:
        return "type", value.__name__
    if kind is type({}.keys()):
        return "keys", list(value)
    if kind is type({}.items()):
        return "items", list(value)
    for base, plain in BASES.items():
        if isinstance(value, base):
            return "as", plain(value)
    return _scalar(value)


def _scalar(value: Any) -> tuple[Any, ...] | None:
    """The tag of a scalar of NumPy, torch or a similar library: an object without dimensions that has `item`."""
    if isinstance(value, type) or getattr(value, "shape", None) != () or not hasattr(value, "item"):
        return None
    number = value.item()
    if type(number) is complex:
        return "complex", number.real, number.imag
    return ("as", number) if type(number) in PLAIN else None
