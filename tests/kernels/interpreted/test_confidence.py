"""Token and confidence by one kernel: the softmax's values, the lowest id among equals, nan where the logits are."""

import pytest
import torch

from dapd import kernels
from dapd.decoding.sampling import Sampling, choose
from dapd.kernels import confidence
from dapd.models import Profile

DTYPES = [
    (torch.float32, torch.float32),
    (torch.float32, torch.float64),
    (torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.float32),
    (torch.bfloat16, torch.float64),
]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Many chunks, the last one broken, on a small vocabulary."""
    monkeypatch.setattr(confidence, "CHUNK", 32)


def both(logits, *, banned=(7,), deferred=(), dtype=torch.float32, **cut):
    """The kernel's choice and torch's: the first banned id is the mask, up to two ends of the text are deferred."""
    eos, eot = (*deferred, None, None)[:2]
    profile = Profile(mask_id=banned[0], eos_id=banned[0] if eos is None else eos, pad_id=0, eot_id=eot)
    sampling = Sampling(suppress=tuple(banned[1:]), eos="defer" if deferred else "none", **cut)
    ours = choose(logits, sampling, profile, dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "usable", lambda tensor: False)
        return ours, choose(logits, sampling, profile, dtype)


@pytest.mark.parametrize(("given", "asked"), DTYPES)
@pytest.mark.parametrize("vocab", [9, 64, 150])
@pytest.mark.parametrize("scale", [0.5, 8.0])
def test_equal_to_the_softmax(given, asked, vocab, scale):
    logits = (scale * torch.randn(2, 2, vocab, generator=torch.Generator().manual_seed(vocab))).to(given)
    logits[0, 0, 7] = 99.0
    for banned, deferred in (([7], []), ([7, 3], []), ([7], [2, 5]), ([7], [int(logits[1, 1].argmax())])):
        ours, theirs = both(logits, banned=banned, deferred=deferred, dtype=asked)
        assert torch.equal(ours.token, theirs.token)
        assert ours.confidence.dtype == asked
        tolerance = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 8e-3}[asked]
        torch.testing.assert_close(ours.confidence, theirs.confidence, rtol=tolerance, atol=0)
        assert torch.equal(ours.make_logits(), theirs.make_logits())


def test_the_lowest_id_among_equals():
    logits = torch.zeros(1, 1, 200)
    logits[..., [40, 100, 101, 190]] = 3.0
    ours, theirs = both(logits)
    assert ours.token.item() == theirs.token.item() == 40
    ours, _ = both(logits, banned=[40])
    assert ours.token.item() == 100


def test_certain_is_exactly_one_where_the_softmax_is():
    logits = torch.full((1, 1, 200), -40.0)
    logits[..., 150] = 40.0
    ours, theirs = both(logits)
    assert ours.confidence.item() == theirs.confidence.item() == 1.0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("at", [0, 63, 64, 199])
def test_what_is_not_finite_makes_the_confidence_so(bad, at):
    logits = torch.randn(1, 2, 200, generator=torch.Generator().manual_seed(0))
    logits[0, 1, at] = bad
    ours, _ = both(logits)
    assert ours.confidence.isfinite().tolist() == [[True, False]]
    assert 0 <= int(ours.token.min()) <= int(ours.token.max()) < 200


def test_no_deferred_token_hides_what_is_not_a_number():
    logits = torch.tensor([[[float("nan"), 2.0, 0.0, 5.0, 4.0], [1.0, 2.0, 0.0, 5.0, 4.0]]])
    ours, _ = both(logits, banned=[3], deferred=[4])
    assert ours.confidence.isnan().tolist() == [[True, False]]
    assert ours.confidence[0, 1] == 0


def test_infinitely_unlikely_tokens():
    logits = torch.full((1, 2, 200), float("-inf"))
    logits[0, 0, [70, 130]] = 1.0
    ours, theirs = both(logits)
    assert ours.token[0, 0] == theirs.token[0, 0] == 70
    assert ours.confidence[0, 0] == 0.5
    assert bool(ours.confidence.isfinite().all()) == bool(theirs.confidence.isfinite().all())


def test_more_ids_than_the_kernel_takes_and_a_nucleus():
    logits = torch.randn(2, 3, 90, generator=torch.Generator().manual_seed(0))
    ours, theirs = both(logits, banned=(7, 8, 9, 10))
    assert torch.equal(ours.token, theirs.token)
    assert torch.equal(ours.confidence, theirs.confidence), "both went the torch way"
    ours, theirs = both(logits)
    cut, theirs = both(logits, top_p=0.5)
    torch.testing.assert_close(cut.confidence, theirs.confidence)
    assert bool((cut.confidence > ours.confidence).all())
