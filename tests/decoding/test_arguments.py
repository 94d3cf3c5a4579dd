"""Mistakes in arguments, and logits that cannot be decided on, end in an error that names them."""

import math

import pytest
import torch

from dapd import (
    Canvas,
    Dapd,
    DapdError,
    DreamSchedule,
    EntropyBound,
    Factor,
    Klass,
    Needs,
    Options,
    Prediction,
    Sampling,
    Threshold,
    TopK,
    decode,
)
from dapd.models import Profile
from decoding.scenes import Leftmost, canvas
from reference.ours import blank, one, run
from reference.scripted import EOS, VOCAB, Scripted, rising


@pytest.mark.parametrize("strategy", [TopK(), Threshold(), Klass(), EntropyBound(), Factor(), DreamSchedule(steps=6)])
def test_nan_logits_stop_at_the_step_where_they_appear(strategy):
    def script(number, column, row):
        return {0: math.nan} if number == 2 and column == 7 else {column % 6: 0.3 + 0.01 * column}

    steps = []
    with pytest.raises(DapdError, match=r"not finite.*step 2, row 0"):
        steps.extend(decode(Scripted(script), canvas(12), strategy))
    assert len(steps) == 2


@pytest.mark.parametrize("shortcut", ["staged", "direct"])
def test_nan_logits_stop_dapd(shortcut):
    attention = torch.eye(8) * 0.5 + 0.06
    model = Scripted(lambda number, column, row: {0: math.nan if number == 1 else 0.4}, attention=attention)
    with pytest.raises(DapdError, match=r"not finite.*step 1"):
        list(decode(model, canvas(), Dapd(shortcut=shortcut)))


class SureOfEos(Scripted):
    """Rules out everything else: all logits but one are -inf."""

    def __call__(self, *args, **more):
        logits = super().__call__(*args, **more).logits
        return Prediction(logits.masked_fill(torch.arange(VOCAB) != EOS, -math.inf))


@pytest.mark.parametrize("sampling", [Sampling(eos="ban"), Sampling(suppress=(EOS,))])
@pytest.mark.parametrize("mask", [EOS + 1, EOS - 1])
def test_where_no_token_is_left_decoding_stops(sampling, mask):
    """What is forbidden was predicted there: EOS, or the mask, which left the canvas as it was for ever."""
    model = SureOfEos(rising, profile=Profile(mask_id=mask, eos_id=EOS, pad_id=EOS))
    assert one(model, [1, 2], 4, TopK()).tokens == [1, 2, *[EOS] * 4]
    with pytest.raises(DapdError, match=r"no token is left at step 0, row 0: the model rules out"):
        next(decode(model, blank(model, [[1, 2]], 4), TopK(), Options(sampling=sampling)))


def test_a_canvas_longer_than_the_model_takes():
    with pytest.raises(DapdError, match=r"8 tokens long.*takes 7"):
        decode(Scripted(rising, max_length=7), canvas(6), TopK())
    assert one(Scripted(rising, max_length=8), [1, 2], 6, TopK()).nfe == 6


@pytest.mark.parametrize("seed", [(1,), (1, 2, 3)])
def test_a_wrong_number_of_seeds(seed):
    with pytest.raises(DapdError, match=f"{len(seed)} seeds for 2 rows"):
        decode(Scripted(rising), canvas(2, [1], [2]), TopK(), Options(seed=seed))


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"refresh": 2}, "nothing is reused"),
        ({"refresh": 0, "reuse": "prefix"}, "refresh is 0"),
        ({"refresh_until": 0, "refresh": 2, "reuse": "prefix"}, "refresh_until is 0"),
        ({"refresh_until": 4, "reuse": "prefix"}, "refresh_until is set but refresh is not"),
        ({"reuse": "prefx"}, "did you mean 'prefix'"),
        ({"confidence_dtype": "fp32"}, "model, float32, float64"),
        ({"block_length": "32"}, "block_length is '32'; it must be a whole number or none"),
        ({"block_length": 0}, "block_length is 0"),
        ({"n_blocks": 0}, "n_blocks is 0"),
        ({"early_stop": 1}, "early_stop is 1"),
        ({"eos_run": 1.5}, "eos_run is 1.5; it must lie between 0 and 1"),
    ],
)
def test_options_that_make_no_sense(fields, complaint):
    with pytest.raises(DapdError, match=complaint):
        Options(**fields)


@pytest.mark.parametrize("strategy", [TopK(steps=5), Klass(steps=5), DreamSchedule(steps=5)])
def test_steps_that_are_no_multiple_of_the_blocks(strategy):
    with pytest.raises(DapdError, match=r"steps is 5.*multiple.*2"):
        decode(Scripted(rising), canvas(6), strategy, Options(block_length=3))
    assert one(Scripted(rising), [1], 5, strategy).nfe <= 5


@pytest.mark.parametrize(
    ("block_length", "complaint"), [(4, "does not divide"), (0, "at least 1"), (7, "does not divide")]
)
def test_blocks_that_do_not_fit(block_length, complaint):
    with pytest.raises(DapdError, match=complaint):
        decode(Scripted(rising), canvas(6), TopK(), Options(block_length=block_length))


def test_a_canvas_of_another_model():
    other = Canvas.blank([1], 3, mask_id=5)
    with pytest.raises(DapdError, match=r"id 5.*model with 9"):
        decode(Scripted(rising), [other], TopK())


class SeesTheCanvas(Leftmost):
    needs = Needs(sees="canvas")


def test_looking_at_the_canvas_and_reusing_parts_of_it_exclude_each_other():
    assert run(Scripted(rising), canvas(), SeesTheCanvas())
    with pytest.raises(DapdError, match="reuse must be none"):
        decode(Scripted(rising), canvas(), SeesTheCanvas(), Options(reuse="prefix"))


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"eos": "never"}, r"none, ban, defer, ban\+defer"),
        ({"suppress": (-1,)}, "suppress"),
        ({"temperature": "0.5"}, "temperature is '0.5'"),
        ({"top_k": True}, "top_k is True"),
    ],
)
def test_sampling_that_makes_no_sense(fields, complaint):
    with pytest.raises(DapdError, match=complaint):
        Sampling(**fields)
