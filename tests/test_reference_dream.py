"""Dream's own sampler: its schedule, its orders, and top-p at temperature 0."""

import pytest
import torch

from dapd import DreamSchedule, Options, Progress, Sampling
from reference import Sequence, dream
from reference.models import IDS, PROMPTS, build
from reference.network import predictions
from reference.ours import one

N = 16
ORDERS = {"entropy": "entropy", "maskgit_plus": "confidence", "topk_margin": "margin"}


def released(n_new: int, steps: int) -> list[int]:
    """The engine's schedule, followed by itself from the first step to the last."""
    strategy, left, counts = DreamSchedule(steps=steps), n_new, []
    for step in range(steps):
        one_row = torch.tensor([1])
        progress = Progress(one_row * left, one_row * n_new, one_row * n_new, one_row * step, one_row)
        counts.append(int((torch.tensor([left]).float() * strategy.released(progress)).floor()))
        left -= counts[-1]
    return counts


@pytest.mark.parametrize("n_new", [64, 128, 256, 512])
def test_as_many_steps_as_tokens_start_empty_and_end_with_two(n_new):
    for counts in (dream.schedule(n_new, n_new), released(n_new, n_new)):
        assert counts[0] == 0
        assert counts[-1] == 2
        assert counts[1:-1] == [1] * (n_new - 2)


def test_a_thousand_tokens_start_with_two_empty_steps_and_end_with_three():
    for counts in (dream.schedule(1024, 1024), released(1024, 1024)):
        assert counts[-1] == 3
        assert counts.count(0) == 2
        assert sum(counts) == 1024


@pytest.mark.parametrize("n_new", [64, 128, 256, 512])
def test_half_as_many_steps_as_tokens(n_new):
    for counts in (dream.schedule(n_new, n_new // 2), released(n_new, n_new // 2)):
        assert counts == [1, *[2] * (n_new // 2 - 2), 3]


def test_every_short_schedule_is_the_same_to_the_token():
    for n_new in (1, 2, 3, 7, 16, 31, 32, 48, 64, 100, 200, 256):
        for steps in {1, 2, 3, 5, n_new // 3, n_new // 2, n_new, n_new + 5, 2 * n_new} - {0}:
            assert released(n_new, steps) == dream.schedule(n_new, steps), (n_new, steps)


@pytest.mark.parametrize("family", ["dream", "llada"])
@pytest.mark.parametrize("alg", list(ORDERS))
@pytest.mark.parametrize("steps", [16, 5, 24])
def test_orders_and_steps(family, alg, steps):
    for prompt, sharpness in zip(PROMPTS, (7.0, 3.0), strict=False):
        model = build(family, seed=steps, sharpness=sharpness)
        theirs = dream.decode(Sequence(model), prompt, N, steps=steps, alg=alg)
        ours = one(model, prompt, N, DreamSchedule(steps=steps, order=ORDERS[alg]))
        assert ours.steps == theirs.steps
        assert ours.tokens == theirs.tokens
        assert ours.nfe == steps
    if steps == 16:
        assert theirs.steps[0] == {}
        assert len(theirs.steps[-1]) == 2


def test_without_steps_there_are_as_many_as_tokens():
    model = build("dream", seed=1)
    theirs = dream.decode(Sequence(model), PROMPTS[0], N, steps=N)
    assert one(model, PROMPTS[0], N, DreamSchedule()).steps == theirs.steps


@pytest.mark.parametrize("reuse", ["prefix", "dual"])
@pytest.mark.parametrize(("steps", "block_length"), [(16, 8), (16, 4), (6, 16)])
def test_the_schedule_with_a_cache(reuse, steps, block_length):
    for seed, prompt in enumerate(PROMPTS):
        model = build("dream", seed)
        theirs = dream.decode_cached(Sequence(model), prompt, N, steps=steps, block_length=block_length, reuse=reuse)
        ours = one(model, prompt, N, DreamSchedule(steps=steps), Options(block_length=block_length, reuse=reuse))
        assert ours.steps == theirs.steps
        assert ours.nfe == steps


@pytest.mark.parametrize("alg", list(ORDERS))
@pytest.mark.parametrize(("top_p", "top_k"), [(0.5, None), (0.9, 3)])
def test_top_p_and_top_k_at_temperature_0(alg, top_p, top_k):
    changes = set()
    for seed in range(3):
        model = build("dream", seed=seed, sharpness=4.0)
        theirs = dream.decode(Sequence(model), PROMPTS[2], N, steps=8, alg=alg, top_p=top_p, top_k=top_k)
        options = Options(sampling=Sampling(top_p=top_p, top_k=top_k))
        ours = one(model, PROMPTS[2], N, DreamSchedule(steps=8, order=ORDERS[alg]), options)
        assert ours.steps == theirs.steps
        changes.add(ours.steps != dream.decode(Sequence(model), PROMPTS[2], N, steps=8, alg=alg).steps)
    assert True in changes


@pytest.mark.parametrize("top_p", [None, 0.9])
def test_the_mask_token_is_never_predicted(top_p):
    raw = 0
    for seed in range(3):
        model = build("dream", seed, boosted={IDS.mask_id: 5.0})
        canvas = [*PROMPTS[0], *[IDS.mask_id] * N]
        raw += sum(int(row.argmax()) == IDS.mask_id for row in predictions(Sequence(model), canvas).values())
        theirs = dream.decode(Sequence(model), PROMPTS[0], N, steps=8, top_p=top_p)
        ours = one(model, PROMPTS[0], N, DreamSchedule(steps=8), Options(sampling=Sampling(top_p=top_p)))
        assert ours.steps == theirs.steps
        assert IDS.mask_id not in ours.tokens
    assert raw >= 3
