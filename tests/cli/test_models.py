"""What every command does with a model before it works with it."""

from __future__ import annotations

import pytest
import torch

import dapd
from dapd.cli.models import SMALL, calm_threads
from dapd.mrf.storage import SHIPPED, load_run


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of threads that torch is told to use."""
    told: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", told.append)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return told


def test_small_models_work_with_one_thread(threads: list[int]) -> None:
    calm_threads(dapd.load("random:tiny-llada", device="cpu").network)
    calm_threads(load_run(SHIPPED).network)
    assert threads == [1, 1]


def test_the_user_and_large_models_have_their_own_say(threads: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    large = dapd.load("random:tiny-llada", device="cpu").network
    monkeypatch.setattr(large, "parameters", lambda: [torch.empty(SMALL, device="meta")])
    calm_threads(large)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    calm_threads(load_run(SHIPPED).network)
    assert threads == []
