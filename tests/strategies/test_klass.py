"""KLASS: ready is confident and stable; otherwise the quota."""

import math

import pytest
import torch

from dapd import DapdError, Klass
from strategies.hand_made import chosen, observe, progress, select


def after(strategy, *steps):
    """The selections of a strategy that sees one observation after the other."""
    memory, out = None, []
    for number, confidence in enumerate(steps):
        selection = strategy.select(observe(confidence, at=progress(step=number)), memory)
        memory = selection.memory
        out.append(chosen(selection)[0])
    return out


def test_two_steps_fall_back_then_what_is_stable_and_confident_goes():
    steady = [0.95, 0.5, 0.92]
    assert after(Klass(0.9, 0.01), steady, steady, steady) == [[0], [0], [0, 2]]


def test_a_position_that_moves_is_not_ready():
    assert after(Klass(0.9, 0.01), [0.95, 0.92], [0.95, 0.5], [0.95, 0.92]) == [[0], [0], [0]]
    assert after(Klass(0.9, 0.01), [0.92, 0.95], [0.92, 0.5], [0.92, 0.95], [0.92, 0.95])[2:] == [[0], [0]]


def test_the_divergence_is_that_of_the_new_from_the_old():
    """KL(now || before), against a distribution of zeros at first."""
    strategy = Klass()
    first = strategy.select(observe([0.5, 0.9]))
    h = -(0.9 * math.log(0.9) + 0.1 * math.log(0.025))
    assert first.memory.kl[0, 1].tolist() == pytest.approx([0.0, -math.log(1e-12) - h], abs=1e-6)
    second = strategy.select(observe([0.5, 0.6]), first.memory)
    kl = 0.6 * math.log(0.6 / 0.9) + 0.4 * math.log(0.1 / 0.025)
    assert second.memory.kl[0, 1].tolist()[-1] == pytest.approx(kl, abs=1e-9)
    assert second.memory.kl[0, 0].tolist()[-1] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("inclusive", "wanted"), [(False, [0]), (True, [0, 1])])
def test_the_threshold_itself_passes_only_for_dream(inclusive, wanted):
    steady = [0.95, 0.9]
    assert after(Klass(0.9, 0.01, inclusive=inclusive), steady, steady, steady)[-1] == wanted


def test_the_guard_restarts_with_the_block():
    steady = observe([0.95, 0.92], at=progress(step=5))
    memory = None
    for _ in range(4):
        memory = Klass().select(steady, memory).memory
    assert select(Klass(), steady, memory) == [[0, 1]]
    assert select(Klass(), observe([0.95, 0.92], at=progress(step=0)), memory) == [[0]]
    assert select(Klass(), observe([0.95, 0.92], at=progress(step=1)), memory) == [[0, 1]]
    assert select(Klass(history=3), observe([0.95, 0.92], at=progress(step=1)), None) == [[0]]


def test_memory_of_another_window_is_a_new_start():
    memory = Klass().select(observe([0.95, 0.92])).memory
    fresh = Klass().select(observe([0.95, 0.92], start=2), memory)
    assert bool((fresh.memory.kl[..., -1] > 20).all())
    assert bool((fresh.memory.kl[..., 0] == 0).all())


def test_the_fallback_follows_the_quota():
    seen = observe([0.1, 0.3, 0.2, 0.4, 0.5], at=progress(total=5))
    assert select(Klass(steps=2), seen) == [[1, 3, 4]]
    assert select(Klass(), seen) == [[4]]


@pytest.mark.parametrize(
    ("unmask", "wanted"), [("all", [0, 1, 2]), ("max_conf", [1]), ("min_kl", [2]), ("random", [0])]
)
def test_which_of_the_ready(unmask, wanted):
    strategy = Klass(0.9, 0.5, unmask=unmask)
    memory = None
    for confidence in ([0.95, 0.99, 0.93], [0.96, 0.995, 0.93], [0.95, 0.99, 0.93]):
        seen = observe(confidence, at=progress(step=3), noise=[[0.9, 0.2, 0.1]])
        selection = strategy.select(seen, memory)
        memory = selection.memory
    assert chosen(selection) == [wanted]
    assert strategy.needs.draws == (unmask == "random")


def test_each_row_for_itself():
    steady = observe([0.95, 0.92], [0.5, 0.4], [0.99, 0.99], masked=[[True, True], [True, True], [False, False]])
    steady.progress.step.fill_(4)
    memory = None
    for _ in range(3):
        selection = Klass().select(steady, memory)
        memory = selection.memory
    assert chosen(selection) == [[0, 1], [0], []]
    assert torch.isfinite(memory.kl).all()


@pytest.mark.parametrize("fields", [{"confidence": 1.5}, {"kl": -1}, {"history": 0}, {"steps": 0}, {"unmask": "some"}])
def test_bad_fields(fields):
    with pytest.raises(DapdError, match=next(iter(fields))):
        Klass(**fields)
