"""The server: an OpenAI-compatible front, and one engine thread that owns the device."""

from dapd.errors import missing_extra

try:
    import fastapi as _fastapi  # noqa: F401
    import prometheus_client as _prometheus  # noqa: F401
    import uvicorn as _uvicorn  # noqa: F401
except ImportError as error:
    raise missing_extra(str(error.name), "serve", "the server") from None

from dapd.server.app import make_app
from dapd.server.config import Config, Keys, Limits
from dapd.server.engine import Engine
from dapd.server.run import serve

__all__ = ["Config", "Engine", "Keys", "Limits", "make_app", "serve"]
