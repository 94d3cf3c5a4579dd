"""Fast-dLLM: threshold and factor, three cache modes, LLaDA and Dream, and Dream's budgeted threshold."""

import pytest

from dapd import Factor, Options, Threshold
from reference import Sequence, fast_dllm
from reference.models import IDS, PROMPTS, build, sizes
from reference.network import predictions
from reference.ours import one

N = 16
REUSE = ["none", "prefix", "dual"]
BLOCKS = [4, 8, 16]


@pytest.mark.parametrize("reuse", REUSE)
@pytest.mark.parametrize("block_length", BLOCKS)
@pytest.mark.parametrize("limit", [0.6, 0.9])
def test_threshold_llada(reuse, block_length, limit):
    results = []
    for seed, prompt in enumerate(PROMPTS):
        model = build("llada", seed)
        theirs = fast_dllm.decode_llada(
            Sequence(model), prompt, N, fast_dllm.threshold(limit), block_length=block_length, reuse=reuse
        )
        ours = one(model, prompt, N, Threshold(limit), Options(block_length=block_length, reuse=reuse))
        assert ours.steps == theirs.steps
        assert ours.tokens == theirs.tokens
        results.append(theirs)
    assert 1 in sizes(*results)
    assert max(sizes(*results)) >= 3


@pytest.mark.parametrize("reuse", REUSE)
@pytest.mark.parametrize("block_length", [4, 16])
@pytest.mark.parametrize("factor", [0.5, 1.0, 2.5])
def test_factor_llada(reuse, block_length, factor):
    results = []
    for seed, prompt in enumerate(PROMPTS):
        model = build("llada", seed)
        theirs = fast_dllm.decode_llada(
            Sequence(model), prompt, N, fast_dllm.factor(factor), block_length=block_length, reuse=reuse
        )
        ours = one(model, prompt, N, Factor(factor), Options(block_length=block_length, reuse=reuse))
        assert ours.steps == theirs.steps
        assert ours.tokens == theirs.tokens
        results.append(theirs)
    assert len(sizes(*results)) >= 2 or (factor, block_length) == (2.5, 4)
    assert min(sizes(*results)) == 1 or factor > 0.5
    assert max(sizes(*results)) >= 3 or factor < 1


def test_the_caches_change_what_is_decoded():
    """Otherwise the comparison of the cache modes would compare one thing three times."""
    decoded = [
        [
            one(build("llada", seed), PROMPTS[0], N, Threshold(0.9), Options(block_length=8, reuse=reuse)).steps
            for seed in range(3)
        ]
        for reuse in REUSE
    ]
    assert decoded[0] != decoded[1]
    assert decoded[0] != decoded[2]
    assert decoded[1] != decoded[2]


@pytest.mark.parametrize(("reuse", "block_length"), [("prefix", 16), ("prefix", 8), ("dual", 8)])
@pytest.mark.parametrize("refresh", [1, 2, 3])
def test_refresh(reuse, block_length, refresh):
    differs = False
    for seed, prompt in enumerate(PROMPTS):
        model = build("llada", seed)
        rule, options = fast_dllm.threshold(0.9), Options(block_length=block_length, reuse=reuse, refresh=refresh)
        theirs = fast_dllm.decode_llada(
            Sequence(model), prompt, N, rule, block_length=block_length, reuse=reuse, refresh=refresh
        )
        ours = one(model, prompt, N, Threshold(0.9), options)
        assert ours.steps == theirs.steps
        plain = one(model, prompt, N, Threshold(0.9), Options(block_length=block_length))
        assert refresh > 1 or ours.steps == plain.steps
        differs |= ours.steps != plain.steps
    assert differs == (refresh > 1)


def test_a_block_that_its_first_pass_fills_costs_one_pass():
    """January 2026: 1 pass at least per block. June 2025 made 2."""
    model = build("llada", 0, sharpness=40.0)
    for reuse in REUSE:
        ours = one(model, PROMPTS[0], N, Threshold(0.3), Options(block_length=4, reuse=reuse))
        assert ours.nfe == N // 4


def test_factors_failing_last_rank_is_taken():
    """By itself: with two masks left both go, whatever the second one's confidence."""
    rule = fast_dllm.factor(1.0)
    assert rule([0.2]) == 1
    assert rule([0.9, 0.1]) == 2
    assert rule([0.9, 0.9, 0.1]) == 3
    assert rule([0.9, 0.5, 0.1]) == 1
    assert rule([0.99, 0.9, 0.7, 0.1]) == 2
    model = build("llada", 1, sharpness=1.0)
    ours = one(model, PROMPTS[0], 2, Factor(1.0))
    assert [len(step) for step in ours.steps] == [2]


@pytest.mark.parametrize("reuse", REUSE)
def test_the_mask_token_is_never_predicted(reuse):
    raw = 0
    for seed in range(3):
        model = build("llada", seed, boosted={IDS.mask_id: 5.0})
        canvas = [*PROMPTS[0], *[IDS.mask_id] * N]
        raw += sum(int(row.argmax()) == IDS.mask_id for row in predictions(Sequence(model), canvas).values())
        theirs = fast_dllm.decode_llada(
            Sequence(model), PROMPTS[0], N, fast_dllm.threshold(0.9), block_length=8, reuse=reuse
        )
        ours = one(model, PROMPTS[0], N, Threshold(0.9), Options(block_length=8, reuse=reuse))
        assert ours.steps == theirs.steps
        assert IDS.mask_id not in ours.tokens
    assert raw >= 3


@pytest.mark.parametrize("block_length", BLOCKS)
@pytest.mark.parametrize(
    ("rule", "strategy"), [(fast_dllm.threshold(0.8), Threshold(0.8)), (fast_dllm.factor(1.0), Factor(1.0))]
)
def test_dream_without_a_cache_is_the_plain_rule(block_length, rule, strategy):
    for seed, prompt in enumerate(PROMPTS):
        model = build("dream", seed)
        theirs = fast_dllm.decode_llada(Sequence(model), prompt, N, rule, block_length=block_length)
        assert one(model, prompt, N, strategy, Options(block_length=block_length)).steps == theirs.steps


@pytest.mark.parametrize("reuse", ["prefix", "dual"])
@pytest.mark.parametrize("block_length", [2, 8, 16])
@pytest.mark.parametrize("limit", [0.6, 0.9])
def test_dream_with_a_cache(reuse, block_length, limit):
    results = []
    for seed, prompt in enumerate(PROMPTS):
        model = build("dream", seed)
        theirs = fast_dllm.decode_dream(
            Sequence(model), prompt, N, fast_dllm.threshold(limit), block_length=block_length, reuse=reuse
        )
        ours = one(model, prompt, N, Threshold(limit), Options(block_length=block_length, reuse=reuse))
        assert ours.steps == theirs.steps
        assert ours.tokens == theirs.tokens
        results.append(theirs)
        firsts = [step for step in ours.steps if any((p - len(prompt)) % block_length == 0 for p in step)]
        assert all(len(step) == 1 for step in firsts)
        assert len(firsts) == N // block_length
    assert block_length == 2 or max(sizes(*results)) >= 2


def test_dream_caches_change_what_is_decoded():
    decoded = [
        [
            one(build("dream", seed), PROMPTS[0], N, Threshold(0.6), Options(block_length=8, reuse=reuse)).steps
            for seed in range(3)
        ]
        for reuse in REUSE
    ]
    assert decoded[0] != decoded[1]
    assert decoded[1] != decoded[2]


@pytest.mark.parametrize("steps", [1, 4, 8, 16])
@pytest.mark.parametrize("limit", [0.6, 0.9])
def test_dreams_budgeted_threshold(steps, limit):
    results = []
    for seed, prompt in enumerate(PROMPTS):
        model = build("dream", seed)
        theirs = fast_dllm.decode_dream_budget(Sequence(model), prompt, N, limit, steps=steps)
        ours = one(model, prompt, N, Threshold(limit, budget=N // steps))
        assert ours.steps == theirs.steps
        assert ours.tokens == theirs.tokens
        assert ours.nfe >= steps
        results.append(ours)
    if steps == 4:
        assert any(result.nfe > steps for result in results), "no leftover was ever carried past the last step"
        plain = [one(build("dream", s), p, N, Threshold(limit)).steps for s, p in enumerate(PROMPTS)]
        assert plain != [result.steps for result in results]
