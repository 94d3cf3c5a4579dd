"""KLASS against the slow one: blocks with one history, the guard at a block's start, the quota, and Dream's variant."""

import pytest

from dapd import Klass, Options
from reference import Sequence, klass
from reference.models import PROMPTS, build, sizes
from reference.ours import one

N = 16
SETTINGS = [(0.6, 0.05), (0.9, 0.01), (0.5, 1.0), (0.8, 0.3)]


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("block_length", [4, 16])
@pytest.mark.parametrize(("confidence", "kl"), SETTINGS)
def test_blocks_and_one_token_a_step(family, block_length, confidence, kl):
    for seed, prompt in enumerate(PROMPTS):
        model = build(family, seed)
        theirs = klass.decode_llada(
            Sequence(model),
            prompt,
            N,
            conf_threshold=confidence,
            kl_threshold=kl,
            steps=N,
            block_length=block_length,
        )
        ours = one(model, prompt, N, Klass(confidence, kl), Options(block_length=block_length))
        assert ours.steps == theirs.steps
        assert ours.tokens == theirs.tokens


@pytest.mark.parametrize("block_length", [8, 16])
@pytest.mark.parametrize("steps", [4, 6, 16])
@pytest.mark.parametrize("history", [1, 2, 3])
def test_quota_fallback_and_length_of_history(block_length, steps, history):
    results = []
    for seed, prompt in enumerate(PROMPTS):
        model = build("llada", seed)
        theirs = klass.decode_llada(
            Sequence(model),
            prompt,
            N,
            conf_threshold=0.6,
            kl_threshold=0.3,
            history=history,
            steps=steps,
            block_length=block_length,
        )
        ours = one(model, prompt, N, Klass(0.6, 0.3, history, steps), Options(block_length=block_length))
        assert ours.steps == theirs.steps
        results.append(ours)
    assert sizes(*results) & {N // steps, N // steps + 1}


@pytest.mark.parametrize(("confidence", "kl"), SETTINGS)
def test_dreams_variant(confidence, kl):
    for seed, prompt in enumerate(PROMPTS):
        model = build("dream", seed)
        theirs = klass.decode_dream(Sequence(model), prompt, N, conf_threshold=confidence, kl_threshold=kl)
        ours = one(model, prompt, N, Klass(confidence, kl, inclusive=True))
        assert ours.steps == theirs.steps
        assert ours.tokens == theirs.tokens


def test_both_branches_are_taken():
    results = [one(build("llada", s), p, N, Klass(0.5, 1.0)) for s, p in enumerate(PROMPTS)]
    assert 1 in sizes(*results)
    assert max(sizes(*results)) >= 3
    assert all([len(step) for step in result.steps[:2]] == [1, 1] for result in results), "the first two fall back"


def test_history_outlives_the_block_and_the_guard_restarts():
    """In a later block the first step falls back, the second may already commit what has been stable all along."""
    starts = []
    for seed, prompt in enumerate(PROMPTS):
        result = one(build("llada", seed), prompt, N, Klass(0.4, 5.0), Options(block_length=8))
        second = [step for step in result.steps if min(step) >= len(prompt) + 8]
        assert len(second[0]) == 1
        starts.append(len(second[1]))
    assert max(starts) > 1
