"""The canvas: masks behind a prompt or anywhere, fixed positions, blocks, commits."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from dapd.canvas import Canvas
from dapd.errors import DapdError

M = 9


def blank(prompt, n_new):
    return Canvas.blank(prompt, n_new, mask_id=M)


def infill(row):
    return Canvas.infill(row, mask_id=M)


def spans(blocks):
    return [(block.start, block.stop) for block in blocks]


def test_blank():
    canvas = blank([1, 2, 3], 2)
    assert canvas.tokens.tolist() == [1, 2, 3, M, M]
    assert canvas.slots.tolist() == [False] * 3 + [True] * 2
    assert torch.equal(canvas.masked, canvas.slots)
    assert (canvas.start, canvas.length, canvas.n_new) == (3, 5, 2)


def test_blank_without_a_prompt():
    assert blank([], 2).tokens.tolist() == [M, M]


def test_masks_in_a_prompt_are_slots():
    canvas = blank([1, M, 2], 2)
    assert canvas.masked.tolist() == [False, True, False, True, True]
    assert canvas.start == 3


@pytest.mark.parametrize("n_new", [0, -3])
def test_no_new_tokens(n_new):
    with pytest.raises(DapdError, match=f"max_new_tokens is {n_new}"):
        blank([1], n_new)


def test_infill():
    canvas = infill([1, M, 2, M, 3])
    assert canvas.tokens.tolist() == [1, M, 2, M, 3]
    assert canvas.masked.tolist() == [False, True, False, True, False]
    assert (canvas.start, canvas.n_new) == (1, None)


@pytest.mark.parametrize("row", [[], [1, 2]])
def test_infill_without_a_mask(row):
    with pytest.raises(DapdError, match="nothing to fill"):
        infill(row)


def test_fix():
    fixed = blank([4], 3).fix({1: 7, 3: 8})
    assert fixed.tokens.tolist() == [4, 7, M, 8]
    assert fixed.masked.tolist() == [False, False, True, False]
    assert torch.equal(fixed.slots, fixed.masked)


def test_fix_leaves_the_canvas_alone():
    canvas = blank([1], 2)
    canvas.fix({1: 5})
    assert canvas.tokens.tolist() == [1, M, M]
    assert canvas.slots.tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("position", "token", "words"),
    [
        (0, 5, "position 0: it is not masked"),
        (3, 5, r"position 3: the row has positions 0\.\.2"),
        (-1, 5, "position -1"),
        (1, M, "mask token"),
    ],
)
def test_fix_refuses(position, token, words):
    with pytest.raises(DapdError, match=words):
        blank([4], 2).fix({position: token})


def test_fixing_a_position_twice_is_refused():
    with pytest.raises(DapdError, match="not masked"):
        blank([1], 2).fix({1: 5}).fix({1: 6})


def test_blocks():
    canvas = blank([1, 2], 6)
    assert spans(canvas.blocks()) == [(2, 8)]
    assert spans(canvas.blocks(6)) == [(2, 8)]
    assert spans(canvas.blocks(3)) == [(2, 5), (5, 8)]
    assert spans(canvas.blocks(1)) == [(i, i + 1) for i in range(2, 8)]


@pytest.mark.parametrize("size", [4, 5, 7, 12])
def test_block_length_must_divide(size):
    with pytest.raises(DapdError, match=f"block_length {size} does not divide the 6 new tokens"):
        blank([1], 6).blocks(size)


@pytest.mark.parametrize("size", [0, -2])
def test_block_length_must_be_positive(size):
    with pytest.raises(DapdError, match=f"block_length is {size}"):
        blank([1], 6).blocks(size)


def test_masks_in_a_prompt_belong_to_the_first_block():
    canvas = blank([1, M, 2], 4)
    assert spans(canvas.blocks(2)) == [(1, 5), (5, 7)]
    assert spans(canvas.blocks()) == [(1, 7)]


def test_infill_blocks_end_at_the_right():
    """Region 2..9 in blocks of 3: the first one is what is left over."""
    canvas = infill([1, 2, M, 3, 4, M, 5, M, 6])
    assert spans(canvas.blocks(3)) == [(2, 3), (3, 6), (6, 9)]
    assert spans(canvas.blocks(100)) == spans(canvas.blocks()) == [(2, 9)]


@pytest.mark.parametrize("size", [None, 1, 2, 3, 4, 5, 6, 7, 50])
def test_infill_blocks_hold_every_mask_once(size):
    canvas = infill([1, 2, M, 3, M, M, 5, M, 6])
    held = torch.zeros(canvas.length)
    for block in canvas.blocks(size):
        assert block.start < block.stop
        held[block] += 1
    assert held.max() == 1
    assert (held[canvas.slots] == 1).all()


def test_nothing_to_fill_no_blocks():
    assert blank([1], 2).fix({1: 5, 2: 6}).blocks() == []


def test_commit():
    canvas = blank([1], 3)
    after = canvas.commit(slice(2, 4), torch.tensor([True, False]), torch.tensor([5, 6]))
    assert after.tokens.tolist() == [1, M, 5, M]
    assert after.masked.tolist() == [False, True, False, True]
    assert torch.equal(after.slots, canvas.slots)
    assert canvas.tokens.tolist() == [1, M, M, M]


def test_a_number_of_blocks():
    assert spans(blank([1, 2], 6).blocks(n_blocks=3)) == [(2, 4), (4, 6), (6, 8)]
    assert spans(blank([1, 2], 6).blocks(2, n_blocks=5)) == [(2, 4), (4, 6), (6, 8)], "the length of a block wins"
    assert spans(infill([1, M, 2, M, M, M]).blocks(n_blocks=2)) == [(1, 3), (3, 6)]
    with pytest.raises(DapdError, match="4 blocks do not divide the 6 new tokens"):
        blank([1], 6).blocks(n_blocks=4)


def test_a_canvas_cannot_be_changed():
    canvas = blank([1], 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        canvas.tokens = torch.zeros(2)
