"""Properties of the loop: rows are independent, and every decoding fills every mask exactly once and ends."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from dapd import (
    PRESETS,
    Canvas,
    Dapd,
    DreamSchedule,
    EntropyBound,
    Factor,
    Klass,
    Options,
    Profile,
    Sampling,
    Threshold,
    TopK,
    TransformerConfig,
    decode,
)
from dapd.models import Transformer, random
from dapd.strategies import Dawn, DistanceGraph, LocalLeap, ShuffledGraph
from reference.models import IDS, build, sizes
from reference.ours import blank, run

# Rows are independent -----------------------------------------------------------------------------------------------

UNEQUAL = [[3, 7, 1, 9, 20], [30, 2], [11, 40, 5, 8, 17, 23, 6]]

DECODERS = {
    **PRESETS,
    "dawn": Dawn(edge=0.2, sink=0.3, layers=1.0),
    "quota": TopK(steps=4),
    "random order": TopK(k=2, order="random"),
    "dream, drawn positions": DreamSchedule(steps=4, alg_temp=0.5),
    "dream, origin": DreamSchedule(steps=4, order="random"),
    "budget": Threshold(0.8, budget=2),
    "klass, soft": Klass(0.4, 1.0, steps=4),
    "klass, one at random": Klass(0.3, 5.0, unmask="random"),
    "dapd, wide": Dapd(0.05, 0.6),
    "dapd, predictor rows": Dapd(0.05, 0.6, rows="predictor"),
}
VARIANTS = set(DECODERS) - set(PRESETS) | {name for name in PRESETS if name.startswith("control")}

LOOPS = {
    "one block": Options(),
    "blocks": Options(block_length=4),
    "blocks, prefix": Options(block_length=4, reuse="prefix"),
    "blocks, dual": Options(block_length=4, reuse="dual"),
    "settled": Options(reuse="settled", refresh=4),
    "prompt prefix, refresh, eos banned": Options(reuse="prefix", refresh=3, sampling=Sampling(eos="ban")),
    "eos deferred, early stop, top-p": Options(
        block_length=4, early_stop=True, sampling=Sampling(eos="defer", top_p=0.8)
    ),
    "temperature": Options(sampling=Sampling(temperature=0.8)),
    "temperature, blocks, dual": Options(
        block_length=4, reuse="dual", early_stop=True, sampling=Sampling(temperature=1.2, tempered_confidence=True)
    ),
}


def alone(model, canvas_of, n_rows, strategy, options, seeds):
    return [run(model, canvas_of(row), strategy, replace(options, seed=(seeds[row],)))[0] for row in range(n_rows)]


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("loop", list(LOOPS))
def test_batched_and_single_decoding_are_the_same(family, loop):
    """Every decoder, prompts of unequal length, fp32: positions, tokens and passes of each row."""
    model, options, seeds = build(family, 1, dtype=torch.float32, sharpness=5.0), LOOPS[loop], (5, 0, 3)
    everything, differ = [], []
    for name, strategy in DECODERS.items():
        if strategy.needs.sees == "canvas" and options.reuse != "none":
            continue
        if name in VARIANTS and loop not in ("blocks", "temperature, blocks, dual"):
            continue
        batch = run(model, blank(model, UNEQUAL, 8), strategy, replace(options, seed=seeds))
        single = alone(model, lambda row: blank(model, [UNEQUAL[row]], 8), len(UNEQUAL), strategy, options, seeds)
        differ += [(name, row) for row, pair in enumerate(zip(batch, single, strict=True)) if pair[0] != pair[1]]
        everything += batch
    assert not differ
    assert {1, 2} <= sizes(*everything)
    assert len({result.nfe for result in everything}) > 2


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_rows_of_a_batch_finish_at_different_times(family):
    """Otherwise nothing would be tested about rows that sit out."""
    model = build(family, 1, dtype=torch.float32)
    for name in ("fast-dllm", "fast-dllm-factor", "dapd-direct"):
        for options in (Options(), Options(block_length=4)):
            if len({row.nfe for row in run(model, blank(model, UNEQUAL, 8), PRESETS[name], options)}) > 1:
                break
        else:
            pytest.fail(f"all rows of {name} take as many passes")


def template(*rows):
    """Masks anywhere, in rows of unequal length."""
    return [Canvas.infill(row, mask_id=IDS.mask_id) for row in rows]


M = IDS.mask_id
TEMPLATES = [[3, M, M, 7, M, 9, M, M, 20, M], [M, 4, M, M, 2, M], [1, 2, 3, 4, 5, 6, M, 8, M, M]]


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("block_length", [None, 3])
def test_batched_and_single_infilling_are_the_same(family, block_length):
    model, options = build(family, 2, dtype=torch.float32), Options(block_length=block_length)
    for name, strategy in DECODERS.items():
        if strategy.needs.draws:
            continue  # the next test's matter
        batch = run(model, template(*TEMPLATES), strategy, options)
        single = alone(model, lambda row: template(TEMPLATES[row]), 3, strategy, options, (0, 0, 0))
        assert [row.steps for row in batch] == [row.steps for row in single], name


@pytest.mark.parametrize(
    "strategy",
    [TopK(), Klass(0.4, 1.0), DECODERS["dawn"], TopK(order="random"), DECODERS["klass, one at random"]],
    ids=["block", "region", "canvas", "random order", "one at random"],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("block_length", [None, 3])
def test_draws_of_a_row_do_not_depend_on_its_neighbours(strategy, temperature, block_length):
    """Templates of unequal length, and prompts with masks in them: other windows alone than in the batch."""
    model, seeds = build("llada", 2, dtype=torch.float32, sharpness=3.0), (4, 5, 6)
    options = Options(block_length=block_length, sampling=Sampling(temperature=temperature))
    batch = run(model, template(*TEMPLATES), strategy, replace(options, seed=seeds))
    single = alone(model, lambda row: template(TEMPLATES[row]), 3, strategy, options, seeds)
    assert [row.steps for row in batch] == [row.steps for row in single]
    prompts = [[3, M, 7, 1], [30, 2, M, M, 8, 9], [5]]
    batch = run(model, blank(model, prompts, 6), strategy, replace(options, seed=seeds))
    single = alone(model, lambda row: blank(model, [prompts[row]], 6), 3, strategy, options, seeds)
    assert [row.steps for row in batch] == [row.steps for row in single]


@pytest.mark.parametrize("rows", ["position", "predictor"])
def test_an_empty_prompt_is_the_same_alone_and_beside_a_longer_one(rows):
    """Dream's first column has no predictor to its left: alone its own row stands in, in a batch there is padding."""
    for seed in range(3):
        model = build("dream", seed, dtype=torch.float32)
        strategy = Dapd(0.05, 0.6, rows=rows, shortcut="none")
        together = run(model, blank(model, [[], [3, 7, 1]], 10), strategy)
        assert together[0].steps == run(model, blank(model, [[]], 10), strategy)[0].steps


@pytest.mark.parametrize("reuse", ["none", "prefix", "dual"])
def test_a_block_may_be_all_padding_for_a_shorter_row(reuse):
    """Row 1 begins behind the first block of row 0, and has nothing to compute in it."""
    model, options = build("dream", 0), Options(block_length=2, reuse=reuse)
    rows = [[M, M, 3, M], [5, M]]
    for strategy in (TopK(), Dapd(), Dapd(rows="predictor")):
        batch = run(model, template(*rows), strategy, options)
        assert [row.tokens.count(M) for row in batch] == [0, 0]
        assert batch[1].steps == run(model, template(rows[1]), strategy, options)[0].steps


@pytest.mark.parametrize("reuse", ["none", "prefix", "dual"])
def test_predictor_rows_of_a_window_that_is_the_first_column_alone(reuse):
    options = Options(block_length=1, reuse=reuse)
    rows = run(build("dream", 0), template([M, M, 3]), Dapd(rows="predictor"), options)
    assert [list(step) for step in rows[0].steps] == [[0], [1]]


# Every decoding ends, and fills every mask once ---------------------------------------------------------------------

TINY = Profile(mask_id=21, eos_id=22, pad_id=22, eot_id=23)
WORDS = st.integers(0, 20)
SHARE = st.floats(0, 1)


@cache
def tiny(lookback: int, seed: int) -> Transformer:
    config = TransformerConfig(
        n_layers=1 + seed % 2,
        d_model=16,
        n_heads=2,
        n_kv_heads=1 + seed % 2,
        d_mlp=16,
        vocab_size=24,
        profile=TINY,
        max_length=32,
        lookback=lookback,
    )
    return random(config, seed=seed, sharpness=(2.0, 6.0, 20.0)[seed])


@st.composite
def canvases(draw):
    """Blank ones with blocks that fit, or templates with masks anywhere; now and then some positions are fixed."""
    n_rows = draw(st.integers(1, 3))
    if draw(st.booleans()):
        block_length, n_blocks = draw(st.integers(1, 5)), draw(st.integers(1, 3))
        words = st.one_of(WORDS, WORDS, WORDS, st.just(TINY.mask_id), st.just(TINY.eos_id))
        prompts = draw(st.lists(st.lists(words, max_size=5), min_size=n_rows, max_size=n_rows))
        rows = [Canvas.blank(prompt, block_length * n_blocks, mask_id=TINY.mask_id) for prompt in prompts]
        block_length = draw(st.sampled_from([block_length, None]))
    else:
        row = st.lists(st.one_of(WORDS, st.just(TINY.mask_id)), min_size=1, max_size=9)
        texts = [[*draw(row), *draw(st.sampled_from([[TINY.mask_id], [TINY.mask_id, 3]]))] for _ in range(n_rows)]
        rows = [Canvas.infill(text, mask_id=TINY.mask_id) for text in texts]
        block_length = draw(st.one_of(st.none(), st.integers(1, 12)))
    if draw(st.integers(0, 4)) == 0:
        slots = rows[0].slots.nonzero().flatten().tolist()
        rows[0] = rows[0].fix(dict.fromkeys(draw(st.sets(st.sampled_from(slots))), 5))
    return rows, block_length


def dapds(cls=Dapd, **more):
    tau = st.tuples(st.floats(0, 0.9), st.floats(0, 0.9)).map(sorted)
    return st.builds(
        lambda tau, **fields: cls(tau[0], tau[1], **fields),
        tau,
        shortcut=st.sampled_from(["staged", "direct", "none"]),
        confident=SHARE,
        switch_at=SHARE,
        late_rule=st.sampled_from(["union", "switch", "filter"]),
        certain=SHARE,
        edge_norm=st.sampled_from(["row_max", "none", "row_sum", "global_max"]),
        direction=st.sampled_from(["candidate_row", "either", "both"]),
        layers=st.sampled_from([0.3, 1.0, (0,), (-1,)]),
        rows=st.sampled_from(["position", "predictor"]),
        **more,
    )


@cache
def decoders(n_blocks: int):
    """Any strategy with any fields; `steps` is a multiple of the number of blocks."""
    steps = st.one_of(st.none(), st.integers(1, 6).map(lambda k: k * n_blocks))
    orders = st.sampled_from(["confidence", "entropy", "margin", "random"])
    return st.one_of(
        st.builds(TopK, k=st.integers(1, 4), steps=steps, order=orders),
        st.builds(DreamSchedule, steps=steps, order=orders, alg_temp=st.sampled_from([0.0, 0.5])),
        st.builds(Threshold, threshold=SHARE, budget=st.one_of(st.none(), st.integers(1, 4))),
        st.builds(Factor, factor=st.floats(0, 6)),
        st.builds(EntropyBound, gamma=st.floats(0, 4), order=st.sampled_from(["confidence", "entropy", "margin"])),
        st.builds(
            Klass,
            confidence=SHARE,
            kl=st.floats(0, 30),
            history=st.integers(1, 3),
            steps=steps,
            unmask=st.sampled_from(["all", "max_conf", "min_kl", "random"]),
            inclusive=st.booleans(),
        ),
        dapds(),
        dapds(),
        dapds(ShuffledGraph),
        dapds(DistanceGraph, width=st.integers(1, 4)),
        st.builds(Dawn, confident=SHARE, induce=SHARE, low=SHARE, edge=SHARE, sink=SHARE, layers=st.just(1.0)),
        st.builds(LocalLeap, threshold=st.floats(0.5, 1), relaxed=st.floats(0, 0.5), radius=st.integers(0, 3)),
    )


SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.0, 0.7, 2.0]),
    top_p=st.sampled_from([None, None, 0.5]),
    top_k=st.sampled_from([None, None, 1, 5]),
    tempered_confidence=st.booleans(),
    eos=st.sampled_from(["none", "ban", "defer", "ban+defer"]),
)
LOOP = st.fixed_dictionaries(
    {
        "reuse": st.sampled_from(["none", "prefix", "dual", "settled"]),
        "refresh": st.sampled_from([None, 1, 2, 3]),
        "early_stop": st.booleans(),
        "eos_run": st.sampled_from([None, None, 0.0, 0.5]),
        "sampling": SAMPLINGS,
        "confidence_dtype": st.sampled_from([None, "model", "float32", "float64"]),
        "seed": st.integers(0, 5),
    }
)


@st.composite
def decodings(draw):
    rows, block_length = draw(canvases())
    n_blocks = max(1, *(len(row.blocks(block_length)) for row in rows))
    strategy = draw(decoders(n_blocks))
    fields = draw(LOOP)
    if strategy.needs.sees == "canvas":
        fields["reuse"] = "none"
    if fields["reuse"] == "none":
        fields["refresh"] = None
    options = Options(block_length=block_length, **fields)
    return draw(st.sampled_from([0, 1])), draw(st.integers(0, 2)), rows, strategy, options


def most_passes(strategy, canvas, options):
    """A pass for every mask; Dream's schedule may use as many as it has steps, and one to begin a block."""
    masks = int(canvas.masked.sum())
    if not isinstance(strategy, DreamSchedule):
        return masks
    n_blocks = len(canvas.blocks(options.block_length))
    return max(strategy.steps or masks, n_blocks) + n_blocks


TALLY: dict[str, int] = {}


def check_step(step, now, strategy, options):
    """What one step may and must do to a canvas."""
    committed = torch.zeros_like(now.slots)
    committed[step.window] = step.commit
    tail = torch.zeros_like(committed) if step.tail is None else step.tail
    assert not bool((committed & ~now.masked).any()), "only what is masked is committed"
    assert not bool((tail & (committed | ~now.masked)).any()), "the tail is what was left masked"
    assert options.early_stop or not bool(tail.any())
    changed = step.canvas.tokens != now.tokens
    assert torch.equal(changed, committed | tail), "nothing else changes"
    token = torch.zeros_like(now.tokens)
    token[step.window] = step.token
    assert torch.equal(step.canvas.tokens[committed], token[committed])
    assert bool((step.canvas.tokens[tail] == TINY.eos_id).all())
    assert not bool((token[committed] == TINY.mask_id).any()), "the mask token is never committed"
    assert "ban" not in options.sampling.eos or not bool((token[committed] == TINY.eos_id).any())
    assert isinstance(strategy, DreamSchedule) or bool(changed.any()), "each pass gets a row ahead"
    confidence = step.confidence[step.commit]
    assert bool(((confidence >= 0) & (confidence <= 1 + 1e-6)).all())
    return changed


@pytest.mark.slow
@settings(max_examples=600, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(decodings())
@pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module"
)  # the shape checks pick at random what they look at
def test_every_decoding_ends_and_fills_every_mask_once(decoding):
    lookback, seed, rows, strategy, options = decoding
    assume(any(bool(row.slots.any()) for row in rows))
    limits = [most_passes(strategy, row, options) for row in rows]
    now, passes = list(rows), [0] * len(rows)
    filled = [torch.zeros_like(row.tokens) for row in rows]
    for step in decode(tiny(lookback, seed), rows, strategy, options):
        passes[step.row] += 1
        assert passes[step.row] <= limits[step.row]
        filled[step.row] += check_step(step, now[step.row], strategy, options)
        now[step.row] = step.canvas
    for row, done, count in zip(rows, now, filled, strict=True):
        assert torch.equal(count, row.slots.long()), "every mask is filled, and once"
        assert torch.equal(done.tokens[~row.slots], row.tokens[~row.slots]), "the prompt stays"
    for fact in (type(strategy).__name__, f"reuse {options.reuse}", f"eos {options.sampling.eos}"):
        TALLY[fact] = TALLY.get(fact, 0) + 1
    TALLY["unequal"] = TALLY.get("unequal", 0) + (len({row.length for row in rows}) > 1)
    TALLY["infilled"] = TALLY.get("infilled", 0) + (rows[0].n_new is None)
    TALLY["blocks"] = TALLY.get("blocks", 0) + (options.block_length is not None)
    TALLY["parallel"] = TALLY.get("parallel", 0) + (sum(passes) < sum(int(row.slots.sum()) for row in rows))


def test_the_combinations_were_not_all_alike():
    """After the hundreds above: every strategy and every choice of the loop had its share."""
    if not TALLY:
        pytest.skip("the decodings ran in another process")
    kinds = [TopK, DreamSchedule, Threshold, Factor, EntropyBound, Klass, Dapd, ShuffledGraph, DistanceGraph, Dawn]
    assert all(TALLY.get(kind.__name__, 0) >= 5 for kind in [*kinds, LocalLeap]), TALLY
    choices = (
        "reuse none",
        "reuse prefix",
        "reuse dual",
        "reuse settled",
        "eos none",
        "eos ban",
        "eos defer",
        "eos ban+defer",
    )
    assert all(TALLY.get(choice, 0) >= 40 for choice in choices), TALLY
    assert all(TALLY[fact] >= 40 for fact in ("unequal", "infilled", "blocks", "parallel")), TALLY
