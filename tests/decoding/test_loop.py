"""Which columns a pass computes, and which masks a decoding fills."""

import pytest
import torch

from dapd import PRESETS, Canvas, Dapd, EntropyBound, Options, Reuse, Threshold, TopK, decode
from dapd.decoding.decoder import on_device
from decoding.scenes import canvas
from reference.models import PROMPTS, build
from reference.ours import blank, one, run
from reference.scripted import MASK, Scripted, rising


@pytest.mark.parametrize(
    ("options", "spans"),
    [
        (Options(block_length=3), [(0, 8)] * 6),
        (Options(block_length=3, reuse="prefix"), [(0, 8), (2, 8), (2, 8), (0, 8), (5, 8), (5, 8)]),
        (Options(block_length=3, reuse="dual"), [(0, 8), (2, 5), (2, 5), (0, 8), (5, 8), (5, 8)]),
        (Options(reuse="prefix", refresh=3), [(0, 8), (2, 8), (2, 8), (0, 8), (2, 8), (2, 8)]),
        (Options(reuse="prefix", refresh=2, block_length=3), [(0, 8), (2, 8), (0, 8), (0, 8), (5, 8), (0, 8)]),
        (Options(reuse="prefix", refresh=1), [(0, 8)] * 6),
        (Options(reuse="prefix", refresh=2, refresh_until=3), [(0, 8), (2, 8), (0, 8), (2, 8), (2, 8), (2, 8)]),
    ],
)
def test_spans(options, spans):
    model = Scripted(rising)
    list(decode(model, canvas(6), TopK(), options))
    assert [(call.span.start, call.span.stop) for call in model.calls] == spans
    assert all(call.cached == (options.reuse is not Reuse.NONE) for call in model.calls)


@pytest.mark.parametrize("name", list(PRESETS))
def test_refresh_at_every_step_is_no_reuse_at_all(name):
    """Exactly, for models without a shift: every pass is a full one."""
    if PRESETS[name].needs.sees == "canvas":
        pytest.skip("looks at the whole canvas, which excludes reuse")
    model = build("llada", 3, dtype=torch.float32)
    batch = blank(model, PROMPTS, 12)
    plain = run(model, batch, PRESETS[name])
    refreshed = run(model, batch, PRESETS[name], Options(reuse="prefix", refresh=1))
    assert refreshed == plain


def test_a_shifted_model_with_a_cache_begins_each_block_with_its_first_position():
    """Whatever the strategy: the cached passes have no row that predicts that position."""
    for strategy in (Threshold(0.1), TopK(k=3), EntropyBound(9.0)):
        model = Scripted(rising, lookback=1)
        result = one(model, [1, 2], 6, strategy, Options(block_length=3, reuse="dual"))
        assert result.steps[0] == {2: 2}
        assert [step for step in result.steps if 5 in step] == [{5: 5}]


def test_a_full_mask_is_not_passed_and_padding_is():
    alone, padded = Scripted(rising), Scripted(rising)
    list(decode(alone, canvas(2, [1, 2]), TopK()))
    list(decode(padded, canvas(2, [1, 2], [3]), TopK()))
    assert alone.calls[0].valid is None
    assert padded.calls[0].valid.tolist() == [[True] * 4, [False, True, True, True]]


def test_masks_anywhere_are_filled_and_nothing_else_is_touched():
    model = Scripted(rising)
    rows = [Canvas.infill(row, mask_id=MASK) for row in ([MASK, 1, MASK, MASK, 2], [1, MASK, 1])]
    result = run(model, rows, TopK())
    assert result[0].tokens == [0, 1, 2, 3, 2]
    assert result[1].tokens == [1, 3, 1], "the script counts columns: position 1 stands in column 3"
    assert [row.nfe for row in result] == [3, 1]


def test_masks_in_the_prompt_belong_to_the_first_block():
    result = one(Scripted(rising), [1, MASK, 2], 4, TopK(), Options(block_length=2))
    assert [sorted(step) for step in result.steps] == [[1], [3], [4], [5], [6]]


def test_fixed_positions_stay():
    rows = [row.fix({3: 0, 5: 0}) for row in canvas(4)]
    assert run(Scripted(rising), rows, TopK())[0].tokens == [1, 2, 2, 0, 4, 0]


def test_a_canvas_with_nothing_left_to_fill_makes_no_pass():
    model = Scripted(rising)
    assert list(decode(model, [row.fix({2: 3, 3: 3}) for row in canvas(2)], TopK())) == []
    assert model.calls == []


def test_edges_are_kept_on_request_only():
    attention = torch.rand(8, 8, generator=torch.Generator().manual_seed(0))
    for wanted in (False, True):
        steps = list(decode(Scripted(rising, attention=attention), canvas(6), Dapd(), Options(record_edges=wanted)))
        assert all((step.edges is not None) == wanted for step in steps)
    assert steps[0].edges.shape == (6, 6)
    assert steps[0].edges.dtype == torch.bool


def test_a_step_runs_on_the_device_of_its_model():
    guard = on_device(torch.device("cuda", 1))
    assert isinstance(guard, torch.cuda.device)
    assert guard.idx == 1
    assert not isinstance(on_device(torch.device("cpu")), torch.cuda.device)


@pytest.mark.parametrize("strategy", [TopK(steps=1), TopK(k=100)])
def test_masks_are_counted_in_whole_numbers(strategy):
    """301 is no bfloat16: rounded counts would ask for another number of steps."""
    model = Scripted(rising, max_length=512)
    with torch.autocast("cpu", torch.bfloat16):
        steps = list(decode(model, blank(model, [[1, 2]], 301), strategy))
    assert len(steps) == (1 if strategy.steps else 4)
    assert not steps[-1].canvas.masked.any()
