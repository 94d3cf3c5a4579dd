"""The server: an OpenAI-compatible front, and one engine thread that owns the device.

The names are imported when they are first used, because the engine alone needs no web framework.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dapd.errors import missing_extra

if TYPE_CHECKING:
    from dapd.server.app import make_app
    from dapd.server.config import Config, Keys, Limits
    from dapd.server.engine import Engine
    from dapd.server.run import serve

__all__ = ["Config", "Engine", "Keys", "Limits", "make_app", "serve"]

_HOMES = {
    "make_app": "app",
    "Config": "config",
    "Keys": "config",
    "Limits": "config",
    "Engine": "engine",
    "serve": "run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        raise missing_extra(str(error.name), "serve", "the server") from None
