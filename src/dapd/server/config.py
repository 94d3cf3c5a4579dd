"""The settings of a server: its limits, its address, and who may use it."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from dapd.errors import DapdError, reason

KEYS_VARIABLE = "DAPD_API_KEYS"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
ORIGIN = re.compile(r"null|(?!http:.*:80$)(?!https:.*:443$)[a-z][a-z0-9+.-]*://[a-z0-9._:\[\]-]+")
"""An origin as a browser writes it: one that is written otherwise would never match a request."""
APPROXIMATE = " (fp8)"
"""The suffix of the name of a model in fp8."""


@dataclass(frozen=True)
class Limits:
    """What one server and one request may use. Every request that asks for more is refused before any work is done."""

    places: int = 16
    """Texts that are decoded at the same time; each n and each prompt of a request is one."""
    queue: int = 64
    """Texts that may wait for a place; a request for more is answered with status 429."""
    body_bytes: int = 1_000_000
    prompt_tokens: int = 16_384
    new_tokens: int = 4_096
    choices: int = 16
    """Texts that one request may ask for: its prompts times n."""
    pattern_chars: int = 20_000
    """Characters of a regular expression or a JSON Schema."""
    seconds: float = 600.0
    """Seconds that a request may take; its `timeout` may ask for less."""
    body_seconds: float = 30.0
    """Seconds in which a request's body must have arrived, however many parts it comes in."""
    write_seconds: float = 30.0
    """Seconds that a client may take to read a chunk of a stream; a slower one is disconnected."""
    drain_seconds: float = 30.0
    """Seconds that running requests have to finish when the server is told to end."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < (0 if name == "queue" else 1):
                raise DapdError(f"{name} is {value}; it must be at least {0 if name == 'queue' else 1}")


@dataclass(frozen=True)
class Config:
    """A server's settings."""

    host: str = "127.0.0.1"
    port: int = 8000
    keys: Keys = field(default_factory=lambda: Keys(()))
    anonymous: bool = False
    """Whether anybody may use a server that other machines can reach."""
    origins: tuple[str, ...] = ()
    """Origins of other pages whose scripts may call the server, such as https://example.org."""
    limits: Limits = field(default_factory=Limits)
    name: str | None = None
    """The model's name for clients; None: as it was loaded, see `public_name`."""

    def __post_init__(self) -> None:
        if not self.is_local and not self.keys and not self.anonymous:
            raise DapdError(
                f"{self.host} can be reached from other machines, and there are no API keys: give --keys FILE, set "
                f"{KEYS_VARIABLE}, or allow everybody with --anonymous"
            )
        for origin in self.origins:
            if not ORIGIN.fullmatch(origin):
                raise DapdError(
                    f"no browser sends the origin {origin!r}: write https://HOST or https://HOST:PORT, in lower "
                    "case, without a path, and without the port where it is the default one"
                )

    def check_free(self) -> None:
        """Refuse an address at which nobody can listen, before minutes are spent on loading a model."""

        async def bind() -> None:
            server = await asyncio.get_running_loop().create_server(
                asyncio.Protocol, self.host, self.port, start_serving=False
            )
            server.close()

        try:
            asyncio.run(bind())
        except OSError as error:
            why = (error.strerror or str(error)).rpartition(": ")[2]  # asyncio puts the address before the reason
            raise DapdError(
                f"cannot listen at {self.host}, port {self.port}: {why}; choose another --port or --host"
            ) from None

    def url(self, port: int | None = None) -> str:
        """The address for clients; `port` is the port that was taken, where any free one was asked for."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port if port is None else port}"

    @property
    def is_local(self) -> bool:
        return self.host in LOOPBACK

    def public_name(self, loaded_as: str) -> str:
        """The model's name for clients. Of a folder or a file it is only the last part, so that no path is shown."""
        name = loaded_as.removesuffix(APPROXIMATE)
        path, module, function = name.partition(".py:")
        if module or Path(name).is_dir():
            name = Path(os.path.abspath(path)).name + module + function
        return self.name or name + (APPROXIMATE if loaded_as.endswith(APPROXIMATE) else "")


class Keys:
    """The API keys that are accepted. They are kept as digests and compared in constant time."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._digests = tuple(_digest(key) for key in keys)

    @classmethod
    def find(cls, path: Path | None) -> Keys:
        """The keys of a file, one per line, and those of the environment variable, separated by commas."""
        lines: list[str] = []
        if path is not None:
            try:
                lines = path.read_text(encoding="utf-8-sig").splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise DapdError(f"cannot read API keys from {path}: {reason(error)}") from None
        found = [key.strip() for key in (*lines, *os.environ.get(KEYS_VARIABLE, "").split(","))]
        keys = tuple(key for key in found if key and not key.startswith("#"))
        if path is not None and not keys:
            raise DapdError(f"{path} holds no API key: write one key per line")
        return cls(keys)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def __contains__(self, key: object) -> bool:
        digest = _digest(str(key))
        # Every key is compared, even after one has matched, so that the time taken reveals nothing.
        return sum(hmac.compare_digest(digest, known) for known in self._digests) > 0


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
