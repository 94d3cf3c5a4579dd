"""Rows that come and go: each is decoded as it would be alone, whoever joins, leaves, fails or shares its passes."""

import copy
import time
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dapd import (
    PRESETS,
    AttentionNeed,
    Canvas,
    Dapd,
    Decoder,
    Needs,
    Options,
    Recordings,
    Sampling,
    Selection,
    Step,
    Threshold,
    TopK,
    decode,
)
from dapd.decoding import graphs
from dapd.decoding.plan import PASS_COST
from dapd.models import random
from dapd.models.cache import KVPool
from dapd.strategies import Dawn, DreamSchedule, Klass
from decoding.rerun import Rerun
from reference.models import IDS, build, shape
from reference.ours import told
from reference.scripted import EOS, MASK, Scripted, rising

STRATEGIES = {
    **PRESETS,
    "dawn": Dawn(edge=0.2, sink=0.3, layers=1.0),
    "quota": TopK(steps=4),
    "random order": TopK(k=2, order="random"),
    "dream, drawn positions": DreamSchedule(steps=4, alg_temp=0.5),
    "budget": Threshold(0.8, budget=2),
    "klass, soft": Klass(0.4, 1.0, steps=4),
    "dapd, wide": Dapd(0.05, 0.6),
    "dapd, predictor rows": Dapd(0.05, 0.6, rows="predictor"),
    "dapd, all layers": Dapd(0.05, 0.6, layers=1.0, shortcut="direct"),
}


@dataclass(frozen=True)
class Request:
    """A row, when it arrives, and when its caller hangs up."""

    canvas: Canvas
    strategy: str
    options: Options
    seed: int
    arrival: int
    patience: int | None


@st.composite
def requests(draw):
    name = draw(st.sampled_from(sorted(STRATEGIES)))
    reuse = "none" if STRATEGIES[name].needs.sees == "canvas" else draw(
        st.sampled_from(["none", "none", "prefix", "dual", "settled"])
    )  # fmt: skip
    words = st.integers(0, 40)
    if draw(st.integers(0, 3)):
        n_new = draw(st.sampled_from([4, 8, 12]))
        canvas = Canvas.blank(draw(st.lists(words, max_size=9)), n_new, mask_id=IDS.mask_id)
        block_length = draw(st.sampled_from([None, 4, n_new]))
    else:
        row = draw(st.lists(st.one_of(words, st.just(IDS.mask_id)), min_size=2, max_size=12))
        canvas = Canvas.infill([*row, IDS.mask_id], mask_id=IDS.mask_id)
        # LLaDA's and Dream's schedules share their steps out evenly to the blocks of a generation only.
        block_length = draw(st.sampled_from([None, 3]))
    if STRATEGIES[name].needs.steps is not None and canvas.n_new is not None:
        block_length = None
    options = Options(
        block_length=block_length,
        reuse=reuse,
        refresh=None if reuse == "none" else draw(st.sampled_from([None, 3])),
        early_stop=draw(st.booleans()),
        eos_run=draw(st.sampled_from([None, None, 0.0, 0.3])),
        sampling=Sampling(
            temperature=draw(st.sampled_from([0.0, 0.0, 0.0, 0.8])), eos=draw(st.sampled_from(["none", "ban", "defer"]))
        ),
    )
    patience = draw(st.one_of(st.none(), st.none(), st.none(), st.integers(1, 4)))
    return Request(canvas, name, options, draw(st.integers(0, 9)), draw(st.integers(0, 6)), patience)


@cache
def model(family):
    # float64: what is decided then never hangs on how the rounding of a padded batch differs from that of a row alone.
    return build(family, 1, sharpness=5.0)


def served(network, asked, places, recordings=None):
    """Rows admitted when they arrive and cancelled when their caller's patience ends."""
    decoder = Decoder(network, recordings, places)
    steps: list[Step] = []
    began: dict[int, int] = {}
    for tick in range(400):
        for number, request in enumerate(asked):
            if request.arrival == tick:
                decoder.admit(
                    request.canvas, STRATEGIES[request.strategy], request.options, name=number, seed=request.seed
                )
            waited = tick - began.get(number, tick)
            if request.patience is not None and waited >= request.patience:
                decoder.cancel(number)
        for row in [*decoder.rows, *decoder.waiting]:
            if row in decoder.rows:
                began.setdefault(row.name, tick)
        if not decoder.rows and not decoder.waiting and tick > 6:
            break
        steps += decoder.step()
        assert places is None or len(decoder.rows) <= places
        assert not decoder.failures
    assert not decoder.rows, "every row leaves"
    decoder.close()
    return decoder, steps


def trajectories(asked, steps):
    canvases = [request.canvas for request in asked]
    return [row.steps for row in told(canvases, steps, stops_early=True)]


TALLY: dict[str, int] = {}


@settings(max_examples=80, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(["llada", "dream"]), st.lists(requests(), min_size=2, max_size=6), st.sampled_from([None, 1, 2, 3])
)
@pytest.mark.filterwarnings("ignore:Do not use the `random` module")
def test_a_row_has_the_trajectory_that_it_has_alone(family, asked, places):
    """Positions, tokens and passes, over random arrivals and departures, strategies, lengths, blocks and reuse."""
    network = model(family)
    decoder, steps = served(network, asked, places)
    together = trajectories(asked, steps)
    for number, request in enumerate(asked):
        if request.canvas.masked.all():
            continue  # it keeps the others company: masks alone are all alike to the model, and rounding chooses
        _, own = served(network, [request], None)
        alone = trajectories([request], own)[0]
        if request.patience is None:
            assert together[number] == alone
        else:
            assert together[number] == alone[: len(together[number])], "as far as it got"
    mixed = len({request.strategy for request in asked}) > 1
    for fact, holds in (
        ("strategies mixed", mixed),
        ("lengths mixed", len({request.canvas.length for request in asked}) > 1),
        ("cancelled", any(request.patience for request in asked)),
        ("waited", places is not None and places < len(asked)),
        ("kept keys", sum(request.options.reuse != "none" for request in asked) > 1),
        ("drew", any(request.options.sampling.temperature for request in asked)),
        ("shared passes", decoder.columns_computed < sum(r.canvas.length for r in asked) * len(steps)),
    ):
        TALLY[fact] = TALLY.get(fact, 0) + holds


def test_the_arrivals_were_not_all_alike():
    if not TALLY:
        pytest.skip("the decodings ran in another process")
    assert all(count >= 8 for count in TALLY.values()), TALLY


@pytest.mark.slow
@settings(max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(st.lists(requests(), min_size=2, max_size=6), st.sampled_from([None, 2, 3]))
@pytest.mark.filterwarnings("ignore:Do not use the `random` module")
def test_recorded_passes_change_nothing(asked, places):
    """With a recorder lengths, widths and groups are filled up: to none of the rows that may make a difference."""
    network = model("llada")
    recordings = graphs.Recordings(Rerun())
    together = trajectories(asked, served(network, asked, places)[1])
    for _ in range(2):
        assert trajectories(asked, served(network, asked, places, recordings)[1]) == together


# One by one ---------------------------------------------------------------------------------------------------------


def blank(n_new, prompt=(1, 2)):
    return Canvas.blank(prompt, n_new, mask_id=MASK)


def test_a_row_leaves_in_the_pass_in_which_it_is_complete_and_the_next_takes_its_place():
    network = Scripted(rising)
    decoder = Decoder(network, places=2)
    for number, n_new in enumerate((1, 4, 2, 3)):
        decoder.admit(blank(n_new), TopK(), name=number)
    present = []
    while decoder.rows or decoder.waiting:
        present.append(sorted(step.row for step in decoder.step()))
    assert present == [[0, 1], [1, 2], [1, 2], [1, 3], [3], [3]]
    assert [len(call.tokens) for call in network.calls] == [2, 2, 2, 2, 1, 1]


class Explodes:
    """Fails in the pass in which a certain token is on the canvas."""

    def select(self, seen, memory=None):
        if bool((seen.current == 5).any()):
            raise ZeroDivisionError("division by zero")
        return Selection(seen.masked & (seen.masked.cumsum(-1) == 1))


def test_a_failing_row_leaves_alone():
    """Column 5 of the script says token 5: the longer rows fail there, the others do not notice."""
    network = Scripted(rising)
    decoder = Decoder(network)
    decoder.admit(blank(5), Explodes(), name="long")
    decoder.admit(blank(3, (1, 2, 3, 4)), TopK(), name="other")
    decoder.admit(blank(6), Explodes(), name="longer")
    decoder.admit(blank(2), Explodes(), name="short")
    steps = []
    while decoder.rows or decoder.waiting:
        steps += decoder.step()
    counts = {name: sum(step.row == name for step in steps) for name in ("long", "other", "longer", "short")}
    assert set(decoder.failures) <= {"long", "longer"}
    assert decoder.failures
    assert all(isinstance(error, ZeroDivisionError) for error in decoder.failures.values())
    assert (counts["other"], counts["short"]) == (3, 2)


def test_a_name_may_be_given_again_after_a_failure():
    """The row that has it now is another one, and stays until it is complete."""
    decoder = Decoder(Scripted(rising))
    for strategy in (Explodes(), TopK()):
        decoder.admit(blank(5), strategy, name="again")
        steps = []
        while decoder.rows or decoder.waiting:
            steps += decoder.step()
    assert list(decoder.failures) == ["again"]
    assert len(steps) == 5


@pytest.mark.parametrize("reuse", ["prefix", "dual", "settled"])
@pytest.mark.parametrize("recorded", [False, True])
def test_steps_can_be_left_and_taken_up_again(reuse, recorded):
    """What the rows keep is still theirs, even if another decoder came in between."""
    network, options = model("llada"), Options(reuse=reuse)
    canvas = Canvas.blank((3, 7, 1, 9, 20), 12, mask_id=IDS.mask_id)
    alone = list(decode(network, [canvas], TopK(), options))
    recordings = Recordings(Rerun()) if recorded else None
    decoder = Decoder(network, recordings)
    decoder.admit(canvas, TopK(), options)
    steps = []
    for step in decoder.steps():
        steps.append(step)
        if len(steps) == 3:
            break
    other = Canvas.blank((40, 2, 2), 12, mask_id=IDS.mask_id)
    list(decode(network, [other], TopK(), options, recordings=recordings))
    steps += decoder.steps()
    assert told([canvas], steps)[0].steps == told([canvas], alone)[0].steps
    if recordings is not None:
        assert len(recordings.free) == 2, "both gave their memory back in the end"


def test_a_decoder_that_is_closed_has_no_rows_and_takes_others():
    """Rows that went on would find zeros where their keys were."""
    canvas = Canvas.blank((3, 7, 1), 4, mask_id=IDS.mask_id)
    decoder = Decoder(model("llada"), places=1)
    for name in ("left", "waiting"):
        decoder.admit(canvas, TopK(), Options(reuse="prefix"), name=name)
    decoder.step()
    decoder.close()
    assert list(decoder.steps()) == []
    decoder.admit(canvas, TopK(), Options(reuse="prefix"), name="next")
    assert [step.row for step in decoder.steps()] == ["next"] * 4


def test_a_decoding_that_is_left_gives_its_memory_back():
    recordings, options = Recordings(Rerun()), Options(reuse="prefix")
    canvas = Canvas.blank((3, 7, 1), 12, mask_id=IDS.mask_id)
    steps = decode(model("llada"), [canvas], TopK(), options, recordings=recordings)
    next(steps)
    assert not recordings.free
    steps.close()
    assert len(recordings.free) == 1


def test_a_contract_that_one_row_breaks_is_its_own_failure():
    class Idle:
        def select(self, seen, memory=None):
            first = seen.masked & (seen.masked.cumsum(-1) == 1)
            return Selection(first & (seen.progress.total != 3)[:, None])

    decoder = Decoder(Scripted(rising))
    decoder.admit(blank(3), Idle(), name="a")
    decoder.admit(blank(2), Idle(), name="b")
    steps = [step.row for _ in range(2) for step in decoder.step()]
    assert steps == ["b", "b"]
    assert "selected nothing" in str(decoder.failures["a"])
    assert not decoder.rows


class Refuses:
    """A constraint of the user's own that fails once a token of its choice stands on the canvas."""

    def __init__(self, token):
        self.token = token

    def check(self, canvas):
        pass

    def tokens(self, scores, canvas, window):
        return scores.argmax(-1)

    def forced(self, canvas, window):
        if (canvas.tokens == self.token).any():
            raise ZeroDivisionError("division by zero")
        return torch.zeros_like(canvas.masked[window])


@pytest.mark.parametrize("k", [1, 8])
def test_a_constraint_that_fails_for_one_row_costs_the_others_nothing(k):
    """The rows that were committed before it failed keep their step, even if it was their last."""
    decoder, constraint = Decoder(Scripted(rising)), Refuses(30)
    for name, prompt in enumerate([(3, 7), (30, 2), (5,)]):
        decoder.admit(blank(8, prompt), TopK(k=k), name=name, constraint=constraint)
    steps = []
    while decoder.rows or decoder.waiting:
        steps += decoder.step()
    assert {name: type(error) for name, error in decoder.failures.items()} == {1: ZeroDivisionError}
    for name in (0, 2):
        mine = [step for step in steps if step.row == name]
        assert [step.index for step in mine] == [*range(8 // k)]
        assert sum(int(step.commit.sum()) for step in mine) == 8


@pytest.mark.parametrize("reuse", ["prefix", "dual", "settled"])
@pytest.mark.parametrize("recorded", [False, True])
def test_what_is_not_a_number_does_not_outlive_its_row(reuse, recorded):
    """The keys of a row that failed are hidden from the shorter row that gets its place, but 0 times nan is nan."""
    model = random(shape("llada"), seed=0)
    with torch.no_grad():
        model.embed.weight[7] = torch.nan
    decoder = Decoder(model, Recordings(Rerun()) if recorded else None, places=1)
    for name, prompt in {"bad": (7, *[1] * 60), "good": (1, 2)}.items():
        canvas = Canvas.blank(prompt, 8, mask_id=IDS.mask_id)
        decoder.admit(canvas, TopK(), Options(reuse=reuse), name=name)
    steps = []
    while decoder.rows or decoder.waiting:
        steps += decoder.step()
    assert list(decoder.failures) == ["bad"]
    assert [step.row for step in steps] == ["good"] * 8


def test_nor_does_it_if_the_row_is_cancelled_while_the_pass_that_makes_it_is_on_its_way():
    """Nobody looks at the results of that pass, and its keys stay in the place that the next row gets."""
    network, recordings, options = build("llada", 0, dtype=torch.float32), Recordings(Rerun()), Options(reuse="prefix")
    network = copy.deepcopy(network)
    long, short = (Canvas.blank((3, 7, 1, 9, 20), n_new, mask_id=IDS.mask_id) for n_new in (40, 4))
    tokens = [int(step.token[step.commit]) for step in decode(network, [long], TopK(), options, recordings=recordings)]
    deadly = next(token for number, token in enumerate(tokens) if number > 1 and token not in tokens[:number])
    with torch.no_grad():
        network.embed.weight[deadly] = torch.nan
    decoder = Decoder(network, recordings, places=1)
    decoder.admit(long, TopK(), options, name="bad")
    while not any(bool((step.canvas.tokens == deadly).any()) for step in decoder.step()):
        pass
    assert decoder.ahead
    decoder.cancel("bad")
    decoder.admit(short, TopK(), replace(options, sampling=Sampling(suppress=(deadly,))), name="good")
    assert [step.row for step in decoder.steps()] == ["good"] * 4


def test_a_row_for_whose_keys_there_is_no_memory_leaves_alone(monkeypatch):
    small, large = (Canvas.blank(prompt, 8, mask_id=IDS.mask_id) for prompt in ([3, 7], [3] * 40))
    decoder = Decoder(model("llada"))
    decoder.admit(small, TopK(), Options(reuse="dual"), name="small")
    first = decoder.step()
    monkeypatch.setattr(KVPool, "grown", lambda self, rows, length: 1 / 0)
    decoder.admit(large, TopK(), Options(reuse="dual"), name="large")
    decoder.admit(large, TopK(), name="keeps nothing")
    rest = [step for steps in iter(decoder.step, []) for step in steps]
    assert {name: type(error) for name, error in decoder.failures.items()} == {"large": ZeroDivisionError}
    alone = list(decode(model("llada"), [small], TopK(), Options(reuse="dual")))
    mine = [step for step in [*first, *rest] if step.row == "small"]
    assert [step.canvas.tokens.tolist() for step in mine] == [step.canvas.tokens.tolist() for step in alone]
    assert sum(step.row == "keeps nothing" for step in rest) == 8


@pytest.mark.parametrize("others", [["stays"], []])
def test_a_row_that_was_cancelled_is_not_decoded_again_when_its_pass_fails(monkeypatch, others):
    """Nor has it failed."""
    decoder = Decoder(model("llada"), Recordings(Rerun()))
    for name in ("gone", *others):
        decoder.admit(Canvas.blank((3, 7), 8, mask_id=IDS.mask_id), TopK(), name=name)
    while not decoder.ahead:
        decoder.step()
    decoder.cancel("gone")
    monkeypatch.setattr(graphs.Flight, "wait", lambda self: 1 / 0)
    before = decoder.columns_needed
    assert [step.row for step in decoder.step()] == others
    assert decoder.columns_needed == before + sum(row.length for row in decoder.rows)
    assert not decoder.failures


def test_cancelled_rows_are_gone_by_the_next_pass():
    network = Scripted(rising)
    decoder = Decoder(network, places=1)
    for name in ("a", "b", "c"):
        decoder.admit(blank(4), TopK(), name=name)
    assert [step.row for step in decoder.step()] == ["a"]
    decoder.cancel("a")
    decoder.cancel("b")
    assert [step.row for step in decoder.step()] == ["c"]
    decoder.cancel("never there")


def test_rows_of_very_different_length_do_not_share_a_pass():
    """Padding one to the other would cost more than a pass of its own."""
    network = Scripted(rising, max_length=10 * PASS_COST)
    decoder = Decoder(network)
    decoder.admit(blank(2, [1] * (3 * PASS_COST)), TopK(), name="long")
    for name in ("a", "b"):
        decoder.admit(blank(2), TopK(), name=name)
    decoder.step()
    assert [tuple(call.tokens.shape) for call in network.calls] == [(1, 3 * PASS_COST + 2), (2, 4)]
    assert decoder.columns_computed == decoder.columns_needed == 3 * PASS_COST + 2 + 8


def test_passes_side_by_side_do_not_count_twice():
    """Rows of unlike lengths have passes of their own in every step: each row is charged with its pass alone."""

    class Slow(Scripted):
        def __call__(self, *args, **kwargs):
            time.sleep(0.01)
            return super().__call__(*args, **kwargs)

    decoder = Decoder(Slow(rising, max_length=10 * PASS_COST))
    decoder.admit(blank(8, [1] * (3 * PASS_COST)), TopK(), name="long")
    decoder.admit(blank(8), TopK(), name="short")
    began = time.perf_counter()
    charged = {"long": 0.0, "short": 0.0}
    for step in decoder.steps():
        charged[step.row] += step.compute_seconds
    assert sum(charged.values()) <= time.perf_counter() - began
    assert min(charged.values()) >= 8 * 0.01


@dataclass(frozen=True)
class PromptFirst:
    """Commits the masked position that attends most to the first two tokens of the row."""

    needs = Needs(attention=AttentionNeed(keys="canvas"), recordable=True)

    def select(self, seen, memory=None):
        score = torch.where(seen.masked, seen.attention[..., :2].sum(-1), -1)
        return Selection(seen.masked & (score == score.amax(-1, keepdim=True)))


@pytest.mark.parametrize("recorded", [False, True])
def test_attention_to_the_canvas_is_told_by_the_positions_of_each_row(recorded):
    """Padding on the left is not counted, be it for a longer neighbour or for a recording."""
    network = model("llada")
    canvases = [Canvas.blank(prompt, 8, mask_id=IDS.mask_id) for prompt in ([3, 7], [30, 2, 2, 5, 9, 1, 4])]
    decoder = Decoder(network, Recordings(Rerun()) if recorded else None)
    for name, canvas in enumerate(canvases):
        decoder.admit(canvas, PromptFirst(), name=name)
    together = told(canvases, decoder.steps())
    for canvas, row in zip(canvases, together, strict=True):
        alone = Decoder(network)
        alone.admit(canvas, PromptFirst())
        assert told([canvas], alone.steps())[0].steps == row.steps


def test_padding_is_counted():
    decoder = Decoder(Scripted(rising))
    decoder.admit(blank(2, [1] * 10), TopK(), name="long")
    decoder.admit(blank(2, [1] * 4), TopK(), name="short")
    decoder.step()
    assert (decoder.columns_needed, decoder.columns_computed) == (18, 24)


def test_attention_is_captured_if_any_row_asks():
    network = Scripted(rising, attention=torch.full((8, 8), 1 / 8))
    decoder = Decoder(network)
    decoder.admit(blank(6), TopK(), name="plain")
    decoder.admit(blank(6), Dapd(), name="graph")
    decoder.step()
    assert [call.capture is not None for call in network.calls] == [True]
    decoder.admit(blank(6), Dapd(layers=1.0), name="other layers")
    before = len(network.calls)
    decoder.step()
    assert len(network.calls) == before + 2, "rows that read the attention of other layers have a pass of their own"
    decoder.cancel("graph")
    decoder.cancel("other layers")
    decoder.step()
    assert network.calls[-1].capture is None


@dataclass(frozen=True)
class Spoils:
    """Writes into everything that it is shown."""

    needs = Needs(draws=True)

    def select(self, seen, memory=None):
        commit = seen.masked & (seen.masked.cumsum(-1) == 1)
        seen.token.fill_(MASK)
        seen.current.fill_(0)
        seen.position.fill_(0)
        seen.confidence.fill_(float("nan"))
        seen.logits.fill_(0)
        seen.progress.remaining.fill_(0)
        seen.masked.fill_(False)
        return Selection(commit)


def test_a_strategy_that_writes_into_what_it_is_shown_does_no_harm():
    decoder = Decoder(Scripted(rising))
    for name in (0, 1):
        decoder.admit(blank(3), Spoils(), name=name)
    done = told([blank(3), blank(3)], list(decoder.steps()))
    assert [row.tokens for row in done] == [[1, 2, 2, 3, 4]] * 2


def test_nor_does_it_change_a_run_of_eos_or_the_likeliest_tokens():
    decoder = Decoder(Scripted(lambda number, column, row: {EOS if column > 2 else 1: 0.9}))
    decoder.admit(blank(3), Spoils(), Options(eos_run=0.5, record_top=1))
    (step,) = decoder.steps()
    assert step.canvas.tokens.tolist() == [1, 2, 1, EOS, EOS]
    assert step.top.token.flatten().tolist() == [1, EOS, EOS]


@pytest.mark.parametrize("places", [0, 1.5, "2"])
def test_places_are_at_least_one(places):
    with pytest.raises(ValueError, match=f"places is {places}; it must be a whole number of at least 1"):
        Decoder(Scripted(rising), places=places)
