"""The pace: exact counts, real choices, and thresholds that give sets of a wanted size."""

import pytest
import torch

from dapd import decode
from dapd.bench.pace import Pace, Paced, paced, passes, random_canvases, with_set_of
from dapd.decoding import Options
from dapd.models import random
from dapd.strategies import PRESETS, Dapd, Strategy


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_takes_the_given_number_of_steps(name: str) -> None:
    model = random("tiny-llada", sharpness=8.0)
    strategy = Paced(PRESETS[name], Pace(steps=5))
    made = list(passes(model, random_canvases(model, 6, 16, 2), strategy, Options()))
    assert [[int(step.commit.sum()) for step in steps] for steps in made] == [[n, n] for n in (4, 3, 3, 3, 3)]
    assert strategy == Paced(PRESETS[name], Pace(steps=5)) != Paced(PRESETS[name], Pace(steps=4))
    assert strategy.needs == PRESETS[name].needs


def test_chosen_positions_come_first() -> None:
    commit = torch.tensor([[False, True, False, True, False]])
    confidence = torch.tensor([[0.9, 0.1, 0.8, 0.2, 0.7]])
    masked = torch.tensor([[True, True, True, True, False]])
    assert paced(commit, confidence, masked, 1).tolist() == [[False, False, False, True, False]]
    assert paced(commit, confidence, masked, 3).tolist() == [[True, True, False, True, False]]


def test_half_of_the_masks_are_decided() -> None:
    model = random("tiny-llada")
    canvases = random_canvases(model, 5, 8, 2, half=True)
    assert [int(canvas.masked.sum()) for canvas in canvases] == [4, 4]
    assert [int(canvas.slots.sum()) for canvas in canvases] == [8, 8]
    for canvas, again in zip(canvases, random_canvases(model, 5, 8, 2, half=True), strict=True):
        assert torch.equal(canvas.tokens, again.tokens)


def test_the_threshold_sets_the_size_of_the_set() -> None:
    model = random("tiny-llada", sharpness=8.0)
    canvases = random_canvases(model, 6, 64, half=True)
    sizes = []
    for wanted in (2, 6):
        strategy: Strategy = with_set_of(model, canvases, Dapd(shortcut="none"), wanted)
        sizes.append(int(next(decode(model, canvases, strategy)).commit.sum()))
    assert 1 <= sizes[0] <= 4
    assert 4 <= sizes[1] <= 9
