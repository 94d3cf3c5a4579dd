"""A server on a port of its own, with a model of random weights (bytes for tokens) or the lab's (which has a chat)."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

import dapd

if find_spec("fastapi") is None or find_spec("openai") is None:  # a machine without dapd[serve,dev]
    collect_ignore_glob = ["test_*.py"]
else:
    from server.helpers_server import Served


@pytest.fixture(scope="session")
def lm() -> dapd.DiffusionLM:
    return dapd.load("random:tiny-llada", device="cpu")


@pytest.fixture(scope="session")
def lab() -> dapd.DiffusionLM:
    return dapd.load("lab", device="cpu")


@pytest.fixture(scope="session")
def served(lm: dapd.DiffusionLM) -> Iterator[Served]:
    with Served(lm) as server:
        yield server


@pytest.fixture(scope="session")
def chatting(lab: dapd.DiffusionLM) -> Iterator[Served]:
    with Served(lab) as server:
        yield server
