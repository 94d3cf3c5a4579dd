"""Shapes in signatures, checked while the tests run: by each function once for arguments of the same form.

The import hook decorates every function of a module with `jaxtyping.jaxtyped`. What that looks at, classes, shapes and
dtypes, is in the form of the arguments: the same form again shows nothing new, and a decoding that is checked at every
call takes three times as long.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable
from dataclasses import is_dataclass
from functools import partial, wraps
from typing import Any

import jaxtyping
import torch
from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
"""A whole number may stand where a float is asked for."""


def install(modules: list[str]) -> None:
    """Check the functions of modules that are yet to be imported."""
    jaxtyping.jaxtyped = partial(once, jaxtyping.jaxtyped)
    jaxtyping.install_import_hook(modules, f"{__name__}.checked")


def once(jaxtyped: Callable[..., Any], target: Any = None, **checker: Any) -> Any:
    """The decorator in place of jaxtyping's own; of a dataclass that one decorates `__init__`."""
    if target is None:
        return partial(once, jaxtyped, **checker)
    if not inspect.isclass(target):
        return _once(target, jaxtyped(target, **checker))
    plain = target.__init__
    jaxtyped(target, **checker)
    if target.__init__ is not plain:
        target.__init__ = _once(plain, target.__init__)
    return target


def _once(plain: Callable[..., Any], checking: Callable[..., Any]) -> Callable[..., Any]:
    seen: set[Hashable] = set()

    @wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        if jaxtyping.config.jaxtyping_disable:
            return plain(*args, **kwargs)
        form = (*map(form_of, args), *kwargs, *map(form_of, kwargs.values()))
        if form in seen:
            return plain(*args, **kwargs)
        result = checking(*args, **kwargs)
        seen.add(form)
        return result

    return call


def form_of(value: object) -> Hashable:
    """What a value has in common with those that are checked alike; numbers are lengths, and so among it."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype
    kind = type(value)
    if kind in (int, bool, str):
        return value
    if kind is slice:
        return kind, value.start, value.stop  # type: ignore[attr-defined]
    if kind is list:
        return kind, len(value), *{type(one) for one in value}  # type: ignore[call-overload, attr-defined]
    if kind is tuple:
        return tuple(map(form_of, value))  # type: ignore[call-overload]
    if is_dataclass(value):
        return kind, *map(form_of, vars(value).values())
    return kind
