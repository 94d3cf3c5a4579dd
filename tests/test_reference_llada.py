"""LLaDA's own sampler: the engine's `original` against the slow one, token by token and step by step."""

import pytest
import torch

from dapd import Options, Sampling, TopK
from reference import Sequence, llada
from reference.models import IDS, PROMPTS, VOCAB, build
from reference.network import predictions
from reference.ours import one

N = 16


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("order", ["confidence", "margin", "entropy"])
@pytest.mark.parametrize(("steps", "block_length"), [(6, 16), (1, 16), (10, 8), (4, 8), (12, 4), (16, 4)])
def test_quota_schedule_blocks_and_orders(family, order, steps, block_length):
    for prompt, sharpness in zip(PROMPTS, (7.0, 3.0), strict=False):
        model = build(family, seed=steps, sharpness=sharpness)
        theirs = llada.decode(Sequence(model), prompt, N, steps=steps, block_length=block_length, order=order)
        ours = one(model, prompt, N, TopK(steps=steps, order=order), Options(block_length=block_length))
        assert ours.steps == theirs.steps
        assert ours.tokens == theirs.tokens
        assert ours.nfe == steps


def test_the_orders_differ():
    models = [build("llada", seed, sharpness=3.0) for seed in range(4)]
    decoded = [
        str([one(model, PROMPTS[0], N, TopK(order=order)).steps for model in models])
        for order in ("confidence", "margin", "entropy")
    ]
    assert len(set(decoded)) == 3


def test_one_token_a_step_is_as_many_steps_as_tokens():
    model = build("llada", seed=2)
    theirs = llada.decode(Sequence(model), PROMPTS[0], N, steps=N, block_length=8)
    assert one(model, PROMPTS[0], N, TopK(), Options(block_length=8)).steps == theirs.steps


def test_more_steps_than_masks_commit_the_same_and_make_no_empty_passes():
    model = build("llada", seed=2)
    theirs = llada.decode(Sequence(model), PROMPTS[0], 6, steps=20, block_length=3)
    ours = one(model, PROMPTS[0], 6, TopK(steps=20), Options(block_length=3))
    assert ours.steps == [step for step in theirs.steps if step]
    assert len(theirs.steps) == 20


@pytest.mark.parametrize("reuse", ["prefix", "dual"])
def test_quota_with_a_cache(reuse):
    differs = False
    for seed in range(3):
        model = build("llada", seed=seed)
        theirs = llada.decode(Sequence(model), PROMPTS[0], N, steps=8, block_length=8, reuse=reuse)
        ours = one(model, PROMPTS[0], N, TopK(steps=8), Options(block_length=8, reuse=reuse))
        assert ours.steps == theirs.steps
        differs |= ours.tokens != llada.decode(Sequence(model), PROMPTS[0], N, steps=8, block_length=8).tokens
    assert differs


def test_the_mask_token_is_never_predicted():
    raw = 0
    for seed in range(3):
        model = build("llada", seed, boosted={IDS.mask_id: 5.0})
        canvas = [*PROMPTS[0], *[IDS.mask_id] * N]
        raw += sum(int(row.argmax()) == IDS.mask_id for row in predictions(Sequence(model), canvas).values())
        theirs = llada.decode(Sequence(model), PROMPTS[0], N, steps=8, block_length=8)
        ours = one(model, PROMPTS[0], N, TopK(steps=8), Options(block_length=8))
        assert ours.steps == theirs.steps
        assert IDS.mask_id not in ours.tokens
    assert raw >= 3


@pytest.mark.parametrize("block_length", [8, 16])
@pytest.mark.parametrize("order", ["confidence", "entropy"])
def test_eos_policies(block_length, order):
    n_eos, decoded = {}, {}
    flags = {"none": {}, "ban": {"logits_eos_inf": True}, "defer": {"confidence_eos_eot_inf": True}}
    for policy, flag in flags.items():
        options = Options(block_length=block_length, sampling=Sampling(eos=policy))
        for seed in range(4):
            model = build("llada", seed=seed, boosted={IDS.eos_id: 4.0, IDS.eot_id: 3.0})
            theirs = llada.decode(
                Sequence(model), PROMPTS[1], N, steps=4, block_length=block_length, order=order, **flag
            )
            ours = one(model, PROMPTS[1], N, TopK(steps=4, order=order), options)
            assert ours.steps == theirs.steps
            n_eos[policy] = n_eos.get(policy, 0) + ours.tokens.count(IDS.eos_id)
            decoded.setdefault(policy, []).append(ours.steps)
    assert n_eos["none"] > 0
    assert n_eos["ban"] == 0
    assert n_eos["defer"] > 0
    assert decoded["none"] != decoded["defer"]


def draws(seed, prompt, block_length, steps, *, tokens, positions):
    """The engine's draws for one row, laid out over the sequence: in each step U for the tokens, then the random order.

    A block draws for its own columns alone.
    """
    generator = torch.Generator().manual_seed(seed)
    uniform, priority = [], []
    for step in range(steps):
        first = len(prompt) + step // (steps * block_length // N) * block_length
        block = slice(first, first + block_length)
        u = torch.full((len(prompt) + N, VOCAB), 0.5, dtype=torch.float64)
        r = torch.zeros(len(prompt) + N, dtype=torch.float64)
        if tokens:
            u[block] = torch.rand((block_length, VOCAB), generator=generator, dtype=torch.float64)
        if positions:
            r[block] = torch.rand((block_length,), generator=generator, dtype=torch.float64)
        uniform.append(u)
        priority.append(r)
    return uniform.__getitem__, priority.__getitem__


@pytest.mark.parametrize(("steps", "block_length"), [(16, 16), (6, 16), (8, 8), (8, 4)])
@pytest.mark.parametrize("seed", [0, 11])
def test_random_order_given_the_same_noise(steps, block_length, seed):
    model, prompt = build("llada", seed=5), PROMPTS[0]
    _, priority = draws(seed, prompt, block_length, steps, tokens=False, positions=True)
    theirs = llada.decode(
        Sequence(model), prompt, N, steps=steps, block_length=block_length, order="random", priority=priority
    )
    ours = one(model, prompt, N, TopK(steps=steps, order="random"), Options(block_length=block_length, seed=seed))
    assert ours.steps == theirs.steps
    assert ours.steps != one(model, prompt, N, TopK(steps=steps), Options(block_length=block_length)).steps


@pytest.mark.parametrize("temperature", [0.3, 1.7])
@pytest.mark.parametrize(
    ("steps", "block_length", "order"), [(8, 16, "confidence"), (8, 8, "confidence"), (4, 8, "random")]
)
@pytest.mark.parametrize("eos", ["none", "ban", "defer"])
def test_temperature_given_the_same_noise(temperature, steps, block_length, order, eos):
    model, prompt = build("llada", seed=6, sharpness=3.0, boosted={IDS.eos_id: 1.5}), PROMPTS[1]
    uniform, priority = draws(7, prompt, block_length, steps, tokens=True, positions=order == "random")
    theirs = llada.decode(
        Sequence(model),
        prompt,
        N,
        steps=steps,
        block_length=block_length,
        order=order,
        temperature=temperature,
        uniform=uniform,
        priority=priority,
        logits_eos_inf=eos == "ban",
        confidence_eos_eot_inf=eos == "defer",
    )
    options = Options(block_length=block_length, seed=7, sampling=Sampling(temperature=temperature, eos=eos))
    ours = one(model, prompt, N, TopK(steps=steps, order=order), options)
    assert ours.steps == theirs.steps
    assert ours.tokens != one(model, prompt, N, TopK(steps=steps), Options(block_length=block_length)).tokens
