"""The loop's contract: what it hands a strategy, what it refuses, and when a row is done."""

import math
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

from dapd import (
    PRESETS,
    AttentionNeed,
    Canvas,
    Capture,
    Dapd,
    DapdError,
    Decoder,
    DreamSchedule,
    EntropyBound,
    Factor,
    Klass,
    Needs,
    Options,
    Prediction,
    Reuse,
    Sampling,
    Selection,
    StrategyContractError,
    Threshold,
    TopK,
    decode,
)
from dapd.decoding.decoder import on_device
from dapd.decoding.sampling import choose
from dapd.models import Profile
from dapd.strategies.base import entropy, order_score
from reference.models import PROMPTS, build
from reference.ours import blank, one, run
from reference.scripted import EOS, EOT, MASK, VOCAB, Scripted, fixed, rising


def canvas(n_new=6, *prompts, model=None):
    return blank(model or Scripted(rising), list(prompts) or [[1, 2]], n_new)


def positions(step):
    """What a step committed, by place in the window."""
    return step.commit.nonzero().flatten().tolist()


# A strategy's side of the contract ----------------------------------------------------------------------------------


class SelectsNothing:
    def select(self, seen, memory=None):
        return Selection(torch.zeros_like(seen.masked))


class SelectsThePrompt:
    needs = Needs(sees="canvas")

    def select(self, seen, memory=None):
        return Selection(torch.ones_like(seen.masked))


class SelectsTwice:
    """The first column of the block, again and again."""

    def select(self, seen, memory=None):
        commit = torch.zeros_like(seen.masked)
        commit[:, 0] = True
        return Selection(commit)


def unchecked(commit, edges=None):
    """A selection past the shape checks that run with the tests: outside of them nothing stops a wrong one."""
    return SimpleNamespace(commit=commit, memory=None, edges=edges)


class SelectsNumbers:
    def select(self, seen, memory=None):
        return unchecked(seen.masked.long())


class SelectsTooFew:
    def select(self, seen, memory=None):
        return unchecked(seen.masked[:, 1:])


class SelectsOneRow:
    def select(self, seen, memory=None):
        return unchecked(seen.masked[0])


class SelectsAList:
    def select(self, seen, memory=None):
        return unchecked(seen.masked.tolist())


class GivesTheEdgesOfOneRow:
    def select(self, seen, memory=None):
        return unchecked(seen.masked, edges=seen.masked[0, :, None] & seen.masked[0])


class GivesPairs:
    def select(self, seen, memory=None):
        return unchecked(seen.masked, edges=[(0, 1)])


class Leftmost:
    """A user's own strategy: nothing but `select`."""

    def select(self, seen, memory=None):
        return Selection(seen.masked & (seen.masked.cumsum(-1) == 1))


@pytest.mark.parametrize(
    ("strategy", "complaint"),
    [
        (SelectsNothing(), "selected nothing"),
        (SelectsThePrompt(), "not masked"),
        (SelectsTwice(), "not masked"),
        (SelectsNumbers(), "bool"),
        (SelectsTooFew(), "shape"),
        (SelectsOneRow(), "shape"),
        (SelectsAList(), r"selected a list; it must be a bool tensor of shape \[1, 6\]"),
        (GivesTheEdgesOfOneRow(), r"gave as edges a torch.bool tensor of shape \[6, 6\]; .* of shape \[1, 6, 6\]"),
        (GivesPairs(), "gave as edges a list"),
    ],
)
@pytest.mark.parametrize("reuse", ["none", "prefix"])
def test_a_broken_contract_is_an_error_that_names_the_strategy(strategy, complaint, reuse):
    if reuse == "prefix" and isinstance(strategy, SelectsThePrompt):
        reuse = "none"
    with pytest.raises(StrategyContractError, match=complaint) as caught:
        list(decode(Scripted(rising), canvas(), strategy, Options(reuse=reuse)))
    assert type(strategy).__name__ in str(caught.value)
    assert isinstance(caught.value, DapdError)


def test_the_error_says_at_which_step_and_row():
    with pytest.raises(StrategyContractError, match=r"step 1, row [01]"):
        list(decode(Scripted(rising), canvas(4, [1], [2, 3]), SelectsTwice()))


def test_nothing_may_be_selected_where_one_row_still_needs_it():
    class FirstRowOnly:
        def select(self, seen, memory=None):
            commit = seen.masked.clone()
            commit[1:] = False
            return Selection(commit)

    with pytest.raises(StrategyContractError, match=r"FirstRowOnly selected nothing \(step 0, row 1\)"):
        list(decode(Scripted(rising), canvas(4, [2, 3], [1]), FirstRowOnly()))


def test_idle_passes_are_allowed_as_far_as_declared_and_in_a_row():
    class Hesitates:
        needs = Needs(max_idle=2)

        def __init__(self, pauses):
            self.pauses = pauses

        def select(self, seen, memory=None):
            count = 0 if memory is None else memory
            first = seen.masked & (seen.masked.cumsum(-1) == 1)
            return Selection(first if count % (self.pauses + 1) == self.pauses else first & False, count + 1)

    assert one(Scripted(rising), [1], 3, Hesitates(2)).nfe == 9
    with pytest.raises(StrategyContractError, match="Hesitates selected nothing"):
        one(Scripted(rising), [1], 3, Hesitates(3))


def test_a_class_with_select_alone_is_a_strategy():
    result = one(Scripted(rising), [1, 2], 5, Leftmost())
    assert result.tokens == [1, 2, 2, 3, 4, 5, 0]
    assert result.steps == [{2: 2}, {3: 3}, {4: 4}, {5: 5}, {6: 0}]


@pytest.mark.parametrize("options", [Options(block_length=2), Options(block_length=3, reuse="dual")])
def test_a_users_class_in_blocks_and_with_a_cache(options):
    model = build("llada", 1)
    result = one(model, PROMPTS[0], 6, Leftmost(), options)
    assert [list(step) for step in result.steps] == [[5], [6], [7], [8], [9], [10]]


@pytest.mark.parametrize("thing", [object(), None, "dapd-staged", TopK, Leftmost])
def test_what_is_not_a_strategy_is_refused_at_once(thing):
    with pytest.raises(DapdError, match="select"):
        decode(Scripted(rising), canvas(), thing)


# What a strategy sees -----------------------------------------------------------------------------------------------


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


def unequal():
    """Two rows of two blocks; the first has one mask less in its first block."""
    first, second = canvas(4, [1, 2, 3], [4])
    return [first.fix({4: 5}), second]


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


# Attention ----------------------------------------------------------------------------------------------------------

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


# Columns computed ---------------------------------------------------------------------------------------------------


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


# Memory -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Box:
    count: torch.Tensor


class Pair(NamedTuple):
    count: torch.Tensor
    twice: torch.Tensor


SHAPES = {
    "tensor": (lambda c: c, lambda m: m),
    "dict": (lambda c: {"count": c}, lambda m: m["count"]),
    "list": (lambda c: [c, 1], lambda m: m[0]),
    "tuple": (lambda c: (1, c), lambda m: m[1]),
    "dataclass": (Box, lambda m: m.count),
    "nested": (lambda c: {"a": [Box(c)]}, lambda m: m["a"][0].count),
    "named tuple": (lambda c: Pair(c, 2 * c), lambda m: m.count),
}


class CountsCalls(Leftmost):
    """Counts its calls, row by row, in its memory."""

    def __init__(self, wrap, unwrap):
        self.wrap, self.unwrap, self.counts = wrap, unwrap, []

    def select(self, seen, memory=None):
        count = torch.zeros(len(seen.masked)) if memory is None else self.unwrap(memory)
        self.counts.append(count.tolist())
        return Selection(super().select(seen).commit, self.wrap(count + 1))


@pytest.mark.parametrize("shape", list(SHAPES))
def test_every_row_takes_its_memory_along(shape):
    """The first row leaves before the others; a third, which waited, starts with no memory and joins them later."""
    counter = CountsCalls(*SHAPES[shape])
    rows = [*unequal(), *canvas(2, [5])]
    list(decode(Scripted(rising), rows, counter, Options(block_length=2), places=2))
    assert counter.counts == [[0, 0], [1, 1], [2, 2], [3], [0], [1]]


@dataclass(frozen=True)
class Numbers:
    """Remembers a number that is no tensor: only rows that have the same number are decided together."""

    def select(self, seen, memory=None):
        number = 1 if memory is None else memory + 1
        return Selection(seen.masked & (seen.masked.cumsum(-1) <= number), number)


def test_what_is_remembered_besides_tensors_must_agree():
    model = Scripted(rising)
    rows = [*canvas(6, [1, 2]), *canvas(1, [1]), *canvas(3, [5])]
    together = run(model, rows, Numbers(), places=2)
    assert [[len(step) for step in row.steps] for row in together] == [[1, 2, 3], [1], [1, 2]]


def test_a_memory_without_a_batch_is_refused():
    class Forgets(Leftmost):
        def select(self, seen, memory=None):
            return Selection(super().select(seen).commit, torch.zeros(3))

    with pytest.raises(StrategyContractError, match=r"Forgets remembers tensors of shape \[3\] for a batch of"):
        list(decode(Scripted(rising), canvas(4, [1], [2]), Forgets()))


def test_a_memory_that_is_refused_costs_the_neighbours_nothing():
    """Their pass is made again without it, with what they remembered before."""

    class Forgets(Leftmost):
        def select(self, seen, memory=None):
            return Selection(super().select(seen).commit, torch.zeros(3))

    decoder = Decoder(Scripted(rising))
    decoder.admit(*canvas(6, [1, 2]), Numbers(), name="good")
    decoder.admit(*canvas(4, [1]), Forgets(), name="bad")
    steps = []
    while decoder.rows or decoder.waiting:
        steps += decoder.step()
    assert list(decoder.failures) == ["bad"]
    assert [(step.row, step.index, int(step.commit.sum())) for step in steps] == [
        ("good", 0, 1), ("good", 1, 2), ("good", 2, 3),
    ]  # fmt: skip


def test_memory_starts_as_none_and_two_decodings_share_nothing():
    counter = CountsCalls(*SHAPES["tensor"])
    for _ in range(2):
        list(decode(Scripted(rising), canvas(2), counter))
    assert counter.counts == [[0], [1], [0], [1]]


# Early stop ---------------------------------------------------------------------------------------------------------

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


# A run of EOS ---------------------------------------------------------------------------------------------------------

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


# Bad input ----------------------------------------------------------------------------------------------------------


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


def test_looking_at_the_canvas_and_reusing_parts_of_it_exclude_each_other():
    with pytest.raises(DapdError, match="reuse must be none"):
        decode(Scripted(rising), canvas(), SelectsThePrompt(), Options(reuse="prefix"))


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


# Infilling and constraints ------------------------------------------------------------------------------------------


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


# From logits to tokens ----------------------------------------------------------------------------------------------


PROFILE = Profile(mask_id=MASK, eos_id=EOS, pad_id=EOS, eot_id=EOT)


def pick(logits, sampling, uniform=None, *, dtype=torch.float64, profile=PROFILE):
    return choose(logits, sampling, profile, dtype, uniform)


def some_logits(n=500, dtype=torch.float64):
    return torch.randn(2, n, VOCAB, generator=torch.Generator().manual_seed(0), dtype=torch.float64).mul(3).to(dtype)


def some_noise(n=500):
    return torch.rand(2, n, VOCAB, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.6])
def test_noise_is_lladas_in_float64_whatever_the_models_dtype(dtype, temperature):
    """argmax of exp(float64 logits) / (-ln U)^T; confidence from the softmax without noise."""
    logits, uniform = some_logits(4000, dtype), some_noise(4000)
    noisy = logits.double().exp() / (-uniform.log()) ** temperature
    noisy[..., MASK] = 0
    choice = pick(logits, Sampling(temperature=temperature), uniform)
    assert torch.equal(choice.token, noisy.argmax(-1))
    plain = logits.double()
    plain[..., MASK] = -math.inf
    wanted = plain.softmax(-1).gather(-1, choice.token[..., None])[..., 0]
    torch.testing.assert_close(choice.confidence, wanted)


def test_banned_tokens_are_never_chosen_and_deferred_ones_have_no_confidence():
    logits = some_logits()
    banned = pick(logits, Sampling(eos="ban"))
    assert not bool(torch.isin(banned.token, torch.tensor([MASK, EOS])).any())
    deferred = pick(logits, Sampling(eos="defer"))
    ending = torch.isin(deferred.token, torch.tensor([EOS, EOT]))
    assert bool(ending.any())
    assert bool((deferred.confidence[ending] == 0).all())
    rest = logits.clone()
    rest[..., [MASK, EOS, EOT]] = -math.inf
    torch.testing.assert_close(deferred.confidence[~ending], rest.softmax(-1).amax(-1)[~ending])


def test_both_of_lladas_flags_at_once():
    """logits_eos_inf and confidence_eos_eot_inf: EOS is never predicted, the end of the turn comes last."""
    logits = some_logits()
    both = pick(logits, Sampling(eos="ban+defer"))
    ending = both.token == EOT
    assert not bool((both.token == EOS).any())
    assert bool(ending.any())
    assert bool((both.confidence[ending] == 0).all())
    rest = logits.clone()
    rest[..., [MASK, EOS, EOT]] = -math.inf
    torch.testing.assert_close(both.confidence[~ending], rest.softmax(-1).amax(-1)[~ending])


def test_special_tokens_of_the_model_and_ids_of_the_caller_are_never_predicted():
    logits = some_logits()
    choice = pick(logits, Sampling(suppress=(2,)), profile=replace(PROFILE, special=(0, 1)))
    assert set(choice.token.unique().tolist()) == {3, 4, 5, 6, EOT, EOS}


@pytest.mark.parametrize("cut", [{"top_k": 1}, {"top_p": 0.5}])
def test_a_deferred_token_has_no_confidence_even_where_nothing_else_is_kept(cut):
    choice = pick(some_logits(), Sampling(**cut, eos="defer"))
    ending = torch.isin(choice.token, torch.tensor([EOS, EOT]))
    assert bool(ending.any())
    assert bool((choice.confidence[ending] == 0).all())


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_top_p_raises_confidence_also_at_temperature_0(temperature):
    logits, uniform = some_logits(), some_noise() if temperature else None
    plain = pick(logits, Sampling(temperature=temperature), uniform)
    cut = pick(logits, Sampling(temperature=temperature, top_p=0.6), uniform)
    same = plain.token == cut.token
    assert bool((cut.confidence[same] >= plain.confidence[same]).all())
    assert bool((cut.confidence[same] > plain.confidence[same]).any())
    kept = cut.make_logits() > torch.finfo(torch.float64).min
    p = (logits / (temperature or 1)).index_fill(-1, torch.tensor([MASK]), -math.inf).softmax(-1)
    least_kept = torch.where(kept, p, 2.0).amin(-1)
    mass = torch.where(kept, p, 0).sum(-1)
    assert bool((mass > 0.6 - 1e-9).all())
    assert bool((mass - least_kept <= 0.6 + 1e-9).all()), "the last one kept is the one that crosses the line"


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.5, top_p=0.9), Sampling(temperature=0.5)])
@pytest.mark.parametrize("tempered", [False, True])
@pytest.mark.parametrize(
    ("given", "wanted"),
    [(torch.float32, torch.float32), (torch.bfloat16, torch.float64), (torch.float64, torch.float32)],
)
def test_a_strategys_logits_are_finite(sampling, tempered, given, wanted):
    """What is forbidden is at the lowest finite value: with -inf an entropy is nan, and EB-Sampler goes one by one."""
    sampling = replace(sampling, tempered_confidence=tempered, eos="defer")
    uniform = some_noise() if sampling.temperature else None
    choice = pick(some_logits(dtype=given), sampling, uniform, dtype=wanted)
    assert choice.make_logits().dtype == wanted
    assert bool(choice.make_logits().isfinite().all())


def test_tempered_confidence_is_that_of_the_tempered_distribution():
    logits, uniform = some_logits(), some_noise()
    choice = pick(logits, Sampling(temperature=0.5, tempered_confidence=True), uniform)
    p = (logits / 0.5).index_fill(-1, torch.tensor([MASK]), -math.inf).softmax(-1)
    torch.testing.assert_close(choice.confidence, p.gather(-1, choice.token[..., None])[..., 0])


def test_the_same_seed_draws_the_same_and_another_one_does_not():
    model = build("llada", 0, sharpness=2.0)
    decoded = {
        seed: [
            one(model, PROMPTS[0], 12, TopK(k=3), Options(seed=seed, sampling=Sampling(temperature=1.0))).tokens
            for _ in range(2)
        ]
        for seed in (0, 1)
    }
    assert decoded[0][0] == decoded[0][1]
    assert decoded[1][0] == decoded[1][1]
    assert decoded[0][0] != decoded[1][0]


def test_a_bfloat16_softmax_calls_certain_what_direct_means_by_it():
    """p = 0.998 is 1.0 in bf16: with the model's dtype and certain = 1.0 Direct is the letter of the authors' code."""
    logits = torch.tensor([[0.0, 6.9], [0.0, 5.0]]).bfloat16()
    assert logits.softmax(-1).amax(-1).tolist() == [1.0, pytest.approx(0.9933, abs=4e-3)]
    assert Dapd(shortcut="direct").certain == 0.998


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
