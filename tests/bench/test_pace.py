"""The pace: exact counts, real choices, and thresholds that give sets of a wanted size."""

import dataclasses

import pytest
import torch

from dapd import decode
from dapd.bench.pace import Pace, paced, random_canvas, with_pace, with_set_of
from dapd.models import random
from dapd.strategies import PRESETS, Dapd, Strategy
from dapd.strategies.base import declared


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_takes_the_given_number_of_steps(name: str) -> None:
    model = random("tiny-llada", sharpness=8.0)
    canvas = random_canvas(model, 6, 16, 2)
    strategy = with_pace(PRESETS[name], Pace(steps=5))
    steps = list(decode(model, canvas, strategy))
    assert [s.commit.sum(-1).tolist() for s in steps] == [[n, n] for n in (4, 3, 3, 3, 3)]
    assert isinstance(strategy, type(PRESETS[name]))
    assert strategy == with_pace(PRESETS[name], Pace(steps=5)) != with_pace(PRESETS[name], Pace(steps=4))
    assert dataclasses.asdict(strategy) == dataclasses.asdict(PRESETS[name])
    for declaration, default in (("recordable", False), ("logits", True)):
        assert declared(strategy, declaration, default) == declared(PRESETS[name], declaration, default)


def test_chosen_positions_come_first() -> None:
    commit = torch.tensor([[False, True, False, True, False]])
    confidence = torch.tensor([[0.9, 0.1, 0.8, 0.2, 0.7]])
    masked = torch.tensor([[True, True, True, True, False]])
    assert paced(commit, confidence, masked, 1).tolist() == [[False, False, False, True, False]]
    assert paced(commit, confidence, masked, 3).tolist() == [[True, True, False, True, False]]


def test_half_of_the_masks_are_decided() -> None:
    model = random("tiny-llada")
    canvas = random_canvas(model, 5, 8, 2, half=True)
    assert canvas.masked.sum(-1).tolist() == [4, 4]
    assert canvas.slots.sum(-1).tolist() == [8, 8]
    assert torch.equal(canvas.tokens, random_canvas(model, 5, 8, 2, half=True).tokens)


def test_the_threshold_sets_the_size_of_the_set() -> None:
    model = random("tiny-llada", sharpness=8.0)
    canvas = random_canvas(model, 6, 64, half=True)
    sizes = []
    for wanted in (2, 6):
        strategy: Strategy = with_set_of(model, canvas, Dapd(shortcut="none"), wanted)
        sizes.append(int(next(decode(model, canvas, strategy)).commit.sum()))
    assert 1 <= sizes[0] <= 4
    assert 4 <= sizes[1] <= 9
