"""How texts end: early stop, and the run of EOS at the end of a canvas."""

import pytest

from dapd import PRESETS, Canvas, Options, Sampling, TopK, decode
from decoding.scenes import canvas, positions
from reference.models import PROMPTS, build
from reference.ours import blank, run
from reference.scripted import EOS, MASK, Scripted, fixed, rising

# Columns 2..7 are to be filled. EOS stands at 4 and is the surest; then 6, 2, 3, 5, 7.
ORDER = fixed(c4=(EOS, 0.95), c6=(5, 0.9), c2=(1, 0.85), c3=(2, 0.8), c5=(3, 0.7), c7=(4, 0.6))


def test_early_stop_waits_until_everything_before_the_first_eos_is_decided():
    model = Scripted(ORDER)
    steps = list(decode(model, canvas(6), TopK(), Options(early_stop=True)))
    assert len(model.calls) == len(steps) == 4
    assert [step.canvas.tokens[2:].tolist() for step in steps] == [
        [MASK, MASK, EOS, MASK, MASK, MASK],
        [MASK, MASK, EOS, MASK, 5, MASK],
        [1, MASK, EOS, MASK, 5, MASK],
        [1, 2, EOS, EOS, 5, EOS],
    ]
    assert [step.tail.nonzero().flatten().tolist() for step in steps] == [[], [], [], [5, 7]]
    assert all(not bool((step.tail[step.window] & step.commit).any()) for step in steps)


def test_without_early_stop_the_tail_is_decoded_as_well():
    steps = list(decode(Scripted(ORDER), canvas(6), TopK()))
    assert len(steps) == 6
    assert steps[-1].canvas.tokens[2:].tolist() == [1, 2, EOS, 3, 5, 4]
    assert all(step.tail is None for step in steps)


def test_a_stopped_row_uses_no_more_passes():
    def script(number, column, row):
        return ORDER(number, column, row) if row[1] == 2 else {column % 6: 0.95 - 0.05 * column}

    result = run(Scripted(script), canvas(6, [1, 2], [1, 3]), TopK(), Options(early_stop=True))
    assert [row.nfe for row in result] == [4, 6]
    assert result[0].tokens[2:] == [1, 2, EOS, EOS, 5, EOS]
    assert EOS not in result[1].tokens


def test_an_early_stop_reaches_over_the_blocks_behind():
    model = Scripted(ORDER)
    steps = list(decode(model, canvas(6), TopK(), Options(early_stop=True, block_length=3)))
    assert len(model.calls) == 3
    assert steps[-1].canvas.tokens[2:].tolist() == [1, 2, EOS, EOS, EOS, EOS]


def test_an_eos_in_the_prompt_stops_nothing():
    steps = list(decode(Scripted(rising), canvas(3, [EOS, 2]), TopK(), Options(early_stop=True)))
    assert len(steps) == 3
    assert steps[-1].canvas.tokens.tolist() == [EOS, 2, 2, 3, 4]


def test_the_first_eos_counts_not_the_surest():
    script = fixed(c6=(EOS, 0.95), c3=(EOS, 0.9), c2=(1, 0.8), c4=(2, 0.7), c5=(2, 0.7), c7=(2, 0.7))
    steps = list(decode(Scripted(script), canvas(6), TopK(), Options(early_stop=True)))
    assert [positions(step) for step in steps] == [[4], [1], [0]]
    assert steps[-1].canvas.tokens[2:].tolist() == [1, EOS, EOS, EOS, EOS, EOS]


# EOS is surer the further back it stands; column 4 is less sure of it than a run of 0.7 asks for.
ENDING = fixed(c2=(1, 0.6), c3=(2, 0.5), c4=(EOS, 0.65), c5=(EOS, 0.75), c6=(EOS, 0.85), c7=(EOS, 0.95))


def test_the_eos_at_the_end_are_committed_together_as_far_as_they_are_sure():
    one_by_one = [positions(step) for step in decode(Scripted(ENDING), canvas(6), TopK())]
    assert one_by_one == [[5], [4], [3], [2], [0], [1]]
    together = [positions(step) for step in decode(Scripted(ENDING), canvas(6), TopK(), Options(eos_run=0.7))]
    assert together == [[3, 4, 5], [2], [0], [1]]
    everything = [positions(step) for step in decode(Scripted(ENDING), canvas(6), TopK(), Options(eos_run=0.5))]
    assert everything == [[2, 3, 4, 5], [0], [1]]


def test_a_run_of_eos_ends_at_another_token_and_goes_on_behind_its_own():
    script = fixed(c2=(EOS, 0.9), c3=(1, 0.8), c4=(EOS, 0.75), c5=(2, 0.1), c6=(EOS, 0.72), c7=(EOS, 0.95))
    steps = list(decode(Scripted(script), canvas(6), TopK(), Options(eos_run=0.7)))
    # Columns 2 and 4 are sure enough, but text is expected behind them.
    assert [positions(step) for step in steps] == [[4, 5], [0], [1], [2], [3]]


def test_a_run_of_eos_belongs_to_the_block_and_to_texts_that_end():
    steps = list(decode(Scripted(ENDING), canvas(6), TopK(), Options(eos_run=0.5, block_length=3)))
    assert [positions(step) for step in steps] == [[2], [0], [1], [0, 1, 2]]
    template = Canvas.infill([1, 2, *[MASK] * 6], mask_id=MASK)
    filled = list(decode(Scripted(ENDING), [template], TopK(), Options(eos_run=0.5)))
    assert all(int(step.commit.sum()) == 1 for step in filled), "in a template EOS is a token like any other"
    banned = Options(eos_run=0.0, sampling=Sampling(eos="ban"))
    assert all(int(step.commit.sum()) == 1 for step in decode(Scripted(ENDING), canvas(6), TopK(), banned))


@pytest.mark.parametrize("name", list(PRESETS))
def test_early_stop_never_changes_what_comes_before_the_first_eos(name):
    stopped_sooner = False
    for seed in range(2):
        model = build("llada", seed, boosted={46: 4.0}, n_layers=4)
        batch = blank(model, PROMPTS, 12)
        for row, full in zip(
            run(model, batch, PRESETS[name], Options(early_stop=True, block_length=6)),
            run(model, batch, PRESETS[name], Options(block_length=6)),
            strict=True,
        ):
            assert full.steps[: row.nfe - 1] == row.steps[:-1]
            assert row.steps[-1] == full.steps[row.nfe - 1]
            start = len(row.tokens) - 12
            new = row.tokens[start:]
            if row.nfe < full.nfe:
                stopped_sooner = True
                assert new[: new.index(46) + 1] == full.tokens[start:][: new.index(46) + 1]
            else:
                assert row.tokens == full.tokens
    assert stopped_sooner
