"""What a strategy sees: windows, progress, logits and their precision, noise, and attention."""

from dataclasses import replace

import pytest
import torch

from dapd import (
    PRESETS,
    AttentionNeed,
    Capture,
    Dapd,
    DapdError,
    DreamSchedule,
    EntropyBound,
    Factor,
    Klass,
    Needs,
    Options,
    Prediction,
    Threshold,
    TopK,
    decode,
)
from dapd.strategies.base import entropy, order_score
from decoding.scenes import Leftmost, canvas, unequal
from reference.models import PROMPTS, build
from reference.ours import blank, run
from reference.scripted import MASK, VOCAB, Scripted, rising


class Watches(Leftmost):
    """Keeps every observation; commits from the left."""

    def __init__(self, **needs):
        self.seen = []
        self.needs = Needs(**needs)

    def select(self, seen, memory=None):
        self.seen.append(seen)
        return super().select(seen, memory)


def ends(seen, row=0):
    """First position of a window, and the one behind its last."""
    assert seen.window[row].tolist() == [int(seen.position[row, 0]), int(seen.position[row, -1]) + 1]
    return tuple(seen.window[row].tolist())


@pytest.mark.parametrize(("sees", "windows"), [("block", [(3, 5), (5, 7)]), ("region", [(3, 7)]), ("canvas", [(0, 7)])])
def test_the_window_is_what_the_strategy_asks_to_see(sees, windows):
    watcher = Watches(sees=sees)
    list(decode(Scripted(rising), canvas(4, [1, 2, 3]), watcher, Options(block_length=2)))
    assert sorted({ends(seen) for seen in watcher.seen}) == windows
    for seen, block in zip(watcher.seen, [{3, 4}, {4}, {5, 6}, {6}], strict=True):
        assert set(seen.position[seen.masked].tolist()) == block
        assert seen.valid.all()
    assert [seen.block.tolist() for seen in watcher.seen] == [[[3, 5]]] * 2 + [[[5, 7]]] * 2


def test_a_region_is_cut_to_the_block_where_only_the_block_is_computed():
    watcher, model = Watches(sees="region"), Scripted(rising)
    list(decode(model, canvas(4), watcher, Options(block_length=2, reuse="dual")))
    assert {ends(seen) for seen in watcher.seen} == {(2, 4), (4, 6)}


def test_what_stands_on_the_canvas_is_shown():
    watcher = Watches(sees="canvas")
    list(decode(Scripted(rising), canvas(3, [1, 2]), watcher))
    assert [seen.current[0].tolist() for seen in watcher.seen] == [
        [1, 2, MASK, MASK, MASK],
        [1, 2, 2, MASK, MASK],
        [1, 2, 2, 3, MASK],
    ]


def test_progress_is_each_rows_own():
    watcher = Watches()
    list(decode(Scripted(rising), unequal(), watcher, Options(block_length=2)))
    progress = [seen.progress for seen in watcher.seen]
    assert [p.remaining.tolist() for p in progress] == [[3, 4], [2, 3], [1, 2], [1]]
    assert [p.step.tolist() for p in progress] == [[0, 0], [0, 1], [1, 0], [1]]
    assert [p.total.tolist() for p in progress] == [[3, 4]] * 3 + [[4]]
    assert [p.block_total.tolist() for p in progress] == [[1, 2], [2, 2], [2, 2], [2]]
    assert [p.n_blocks.tolist() for p in progress] == [[2, 2]] * 3 + [[2]]
    torch.testing.assert_close(progress[1].unmasked, torch.tensor([1 / 3, 1 / 4], dtype=torch.float64))


def test_a_row_goes_on_to_its_next_block_and_leaves_without_waiting_for_others():
    model = Scripted(rising)
    steps = list(decode(model, unequal(), Leftmost(), Options(block_length=2)))
    assert [(step.row, step.index) for step in steps] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (1, 3)]
    assert [step.window for step in steps if step.row == 0] == [slice(3, 5), slice(5, 7), slice(5, 7)]
    assert [step.done for step in steps] == [False] * 4 + [True, False, True]
    assert [len(call.tokens) for call in model.calls] == [2, 2, 2, 1]


def test_the_mask_token_is_at_the_lowest_finite_logit_and_is_never_the_token():
    model = Scripted(lambda number, column, row: {MASK: 0.9, 3: 0.08})
    watcher = Watches()
    result = run(model, canvas(3), watcher)[0]
    assert result.tokens == [1, 2, 3, 3, 3]
    for seen in watcher.seen:
        assert bool((seen.logits[..., MASK] == torch.finfo(seen.logits.dtype).min).all())
        assert bool(seen.logits.isfinite().all())
        torch.testing.assert_close(seen.confidence, torch.full_like(seen.confidence, 0.8))


@pytest.mark.parametrize(
    ("asked", "option", "wanted"),
    [
        (None, None, torch.float32),
        ("float64", None, torch.float64),
        ("model", None, torch.bfloat16),
        ("model", "float32", torch.float32),
        ("float32", "model", torch.bfloat16),
        ("float32", "float64", torch.float64),
    ],
)
def test_precision_of_the_confidence(asked, option, wanted):
    model = build("llada", 0, dtype=torch.bfloat16)
    watcher = Watches(**({} if asked is None else {"precision": asked}))
    next(decode(model, blank(model, PROMPTS, 4), watcher, Options(confidence_dtype=option)))
    assert watcher.seen[0].confidence.dtype == wanted
    assert watcher.seen[0].logits.dtype == wanted


def test_entropies_are_numbers_in_float16():
    """1e-10 is 0 in float16 and log(0) infinite: every entropy was nan, and positions were taken from left to right."""
    model = build("dream", 0, dtype=torch.float16)
    watcher = Watches(precision="model")
    next(decode(model, blank(model, PROMPTS, 8), watcher))
    (seen,) = watcher.seen
    assert seen.confidence.dtype == torch.float16
    p = seen.make_logits().double().softmax(-1)
    wanted = torch.special.entr(p).sum(-1)
    torch.testing.assert_close(-order_score(seen, "entropy").double(), wanted, atol=1e-5, rtol=0)
    torch.testing.assert_close(entropy(seen.logits).double(), wanted, atol=1e-5, rtol=0)
    assert bool(Klass().remember(seen, None).kl.isfinite().all())


def test_what_each_decoder_decides_in():
    wanted = {
        "original": "model",
        "dream": "model",
        "fast-dllm": "float64",
        "fast-dllm-factor": "float64",
        "eb-sampler": "float64",
        "klass": "float64",
        "dapd-staged": "float32",
        "dapd-direct": "float32",
    }
    assert {name: PRESETS[name].needs.precision for name in wanted} == wanted


def test_logits_are_made_when_they_are_asked_for_and_once():
    made = []

    class Counts(Leftmost):
        def select(self, seen, memory=None):
            counted = replace(seen, make_logits=lambda: (made.append(1), seen.make_logits())[1])
            if self.reads:
                assert counted.logits is counted.logits
                assert counted.logits.shape == (1, 3, VOCAB)
            return super().select(counted)

    for reads, times in ((False, 0), (True, 3)):
        strategy = Counts()
        strategy.reads = reads
        list(decode(Scripted(rising), canvas(3), strategy))
        assert len(made) == times


def test_noise_is_drawn_only_for_those_who_ask():
    quiet, noisy = Watches(), Watches(draws=True)
    for watcher in (quiet, noisy):
        list(decode(Scripted(rising), canvas(3), watcher))
    assert all(seen.drawn is None for seen in quiet.seen)
    assert all(seen.noise.shape == seen.masked.shape for seen in noisy.seen)
    assert all(bool(((seen.noise > 0) & (seen.noise < 1)).all()) for seen in noisy.seen)
    assert not torch.equal(noisy.seen[0].noise, noisy.seen[1].noise)


@pytest.mark.parametrize(("what", "need"), [("attention", "attention=dapd.AttentionNeed()"), ("noise", "draws=True")])
def test_what_was_not_asked_for_says_how_to_ask(what, need):
    class Reads(Leftmost):
        def select(self, seen, memory=None):
            return super().select(seen, getattr(seen, what).sum())

    with pytest.raises(DapdError, match=f"reads seen.{what} without asking for it") as caught:
        list(decode(Scripted(rising), canvas(3), Reads()))
    assert f"dapd.Needs({need})" in str(caught.value)


BASELINES = [TopK(), DreamSchedule(steps=4), Threshold(), Threshold(budget=2), Factor(), EntropyBound(), Klass()]


@pytest.mark.parametrize("strategy", BASELINES, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("reuse", ["none", "dual"])
def test_baselines_never_pay_for_attention(strategy, reuse):
    model = Scripted(rising)
    list(decode(model, canvas(6), strategy, Options(block_length=3, reuse=reuse)))
    assert model.calls
    assert all(call.capture is None for call in model.calls)


@pytest.mark.parametrize("reuse", ["none", "prefix", "dual"])
def test_dapd_asks_for_the_window_of_the_last_layers(reuse):
    model = Scripted(rising, n_layers=10, attention=torch.full((8, 8), 1 / 8))
    list(decode(model, canvas(6), Dapd(), Options(block_length=3, reuse=reuse)))
    assert {(call.window.start, call.window.stop) for call in model.calls} == {(2, 5), (5, 8)}
    assert {call.capture for call in model.calls} == {Capture(frozenset({7, 8, 9}), rows="position", keys="window")}


class Answers(Scripted):
    """A model that answers as it is told to, whatever it is asked."""

    def __init__(self, answer, n_layers=4):
        super().__init__(rising, n_layers=n_layers)
        self.answer = answer

    def __call__(self, *args, **asked):
        return self.answer


LOGITS = torch.zeros(1, 6, VOCAB)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Answers(LOGITS), "the model Answers answered Tensor, not a Prediction"),
        (Answers(Prediction(LOGITS[0])), r"answered logits of shape \[6, \d+\]; it must be of shape \[1, 6, \d+\]"),
        (Answers(Prediction(LOGITS[:, :5])), r"answered logits of shape \[1, 5, \d+\]; it must be of shape \[1, 6,"),
        (Answers(Prediction(LOGITS)), r"captured attention None; it must be of shape \[1, 6, 6\]"),
        (Answers(Prediction(LOGITS, torch.zeros(1, 6, 8))), r"captured attention of shape \[1, 6, 8\]"),
        (Answers(Prediction(LOGITS), n_layers=0), r"Dapd reads attention, and the model Answers shows none"),
    ],
)
def test_a_model_that_answers_something_else_is_told_so(model, words):
    with pytest.raises(DapdError, match=words):
        list(decode(model, canvas(6), Dapd()))


def test_a_strategy_may_look_at_the_whole_canvas():
    attention = torch.rand(8, 8, generator=torch.Generator().manual_seed(0))
    watcher = Watches(attention=AttentionNeed(layers=(0, -1), keys="canvas"))
    model = Scripted(rising, attention=attention)
    list(decode(model, canvas(6), watcher, Options(block_length=3)))
    assert model.calls[0].capture.layers == frozenset({0, 3})
    torch.testing.assert_close(watcher.seen[0].attention[0], attention[2:5])
    torch.testing.assert_close(watcher.seen[-1].attention[0], attention[5:8])


def test_predictor_rows_are_one_column_to_the_left_and_the_first_is_repeated():
    attention = torch.rand(6, 6, generator=torch.Generator().manual_seed(0))
    need = AttentionNeed(rows="predictor")
    with_prompt, without = Watches(attention=need), Watches(attention=need)
    list(decode(Scripted(rising, lookback=1, attention=attention), canvas(4), with_prompt))
    list(decode(Scripted(rising, lookback=1, attention=attention), canvas(6, []), without))
    torch.testing.assert_close(with_prompt.seen[0].attention[0], attention[1:5, 2:6])
    torch.testing.assert_close(without.seen[0].attention[0], attention[[0, 0, 1, 2, 3, 4]])


def test_layers_that_do_not_exist_are_an_error():
    """It is reported at once, as every mistake in the arguments is, and not in the first pass."""
    with pytest.raises(DapdError, match=r"layers \[4\] do not exist"):
        decode(Scripted(rising, attention=torch.eye(8)), canvas(), Dapd(layers=(3, 4)))
