"""EB-Sampler against the slow one: both orders, blocks, caches."""

import pytest

from dapd import EntropyBound, Options
from reference import Sequence, entropy_bound
from reference.models import PROMPTS, build, sizes
from reference.ours import one

N = 16


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("order", ["confidence", "entropy"])
@pytest.mark.parametrize("block_length", [4, 16])
@pytest.mark.parametrize("gamma", [0.1, 1.0])
def test_eb_sampler(family, order, block_length, gamma):
    results = []
    for seed, prompt in enumerate(PROMPTS):
        model = build(family, seed)
        theirs = entropy_bound.decode(Sequence(model), prompt, N, gamma=gamma, order=order, block_length=block_length)
        ours = one(model, prompt, N, EntropyBound(gamma, order=order), Options(block_length=block_length))
        assert ours.steps == theirs.steps
        assert ours.tokens == theirs.tokens
        results.append(ours)
    assert 1 in sizes(*results)
    assert gamma < 1 or max(sizes(*results)) >= 3


@pytest.mark.parametrize("reuse", ["prefix", "dual"])
def test_with_a_cache(reuse):
    for seed, prompt in enumerate(PROMPTS):
        model = build("llada", seed)
        theirs = entropy_bound.decode(
            Sequence(model), prompt, N, gamma=0.5, order="confidence", block_length=8, reuse=reuse
        )
        assert one(model, prompt, N, EntropyBound(0.5), Options(block_length=8, reuse=reuse)).steps == theirs.steps


def test_the_orders_differ():
    model = build("llada", 0)
    a, b = (one(model, PROMPTS[0], N, EntropyBound(0.5, order=order)).steps for order in ("confidence", "entropy"))
    assert a != b


def test_the_greatest_entropy_is_free_wherever_it_stands():
    """With the order by confidence the greatest need not come last: cummax must be kept."""
    assert entropy_bound.count([0.3, 0.05, 0.04, 0.5], 0.1) == 3
    assert entropy_bound.count([2.0, 2.0], 0.1) == 1
    assert entropy_bound.count([0.0, 0.0, 5.0], 0.0) == 3
