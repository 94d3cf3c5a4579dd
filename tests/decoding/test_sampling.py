"""From logits to tokens: forbidden and deferred tokens, noise, top-p and top-k, and the confidence that results."""

import math
from dataclasses import replace

import pytest
import torch

from dapd import Dapd, Options, Sampling, TopK
from dapd.decoding.sampling import choose
from dapd.models import Profile
from reference.models import PROMPTS, build
from reference.ours import one
from reference.scripted import EOS, EOT, MASK, VOCAB

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
