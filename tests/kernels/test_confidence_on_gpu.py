"""Token and confidence on a GPU against torch's argmax and softmax, at a real vocabulary."""

import pytest
import torch

from dapd import kernels
from dapd.decoding.sampling import Sampling, choose
from dapd.models import SHAPES

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

LLADA = SHAPES["llada-8b"].profile
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 8e-3}


@pytest.mark.parametrize("shape", [(1, 256), (8, 40), (1, 5)])
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("asked", ["model", torch.float32, torch.float64])
@pytest.mark.parametrize("vocab", [126464, 152064])
def test_equal_to_torch_and_without_a_sync(shape, given, asked, vocab, monkeypatch):
    dtype = given if asked == "model" else asked
    generator = torch.Generator(device="cuda").manual_seed(shape[1])
    logits = (4 * torch.randn(*shape, vocab, generator=generator, device="cuda")).to(given)
    sampling = Sampling(eos="defer")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        ours = choose(logits, sampling, LLADA, dtype)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    monkeypatch.setattr(kernels, "usable", lambda tensor: False)
    theirs = choose(logits, sampling, LLADA, dtype)
    assert torch.equal(ours.token, theirs.token)
    torch.testing.assert_close(ours.confidence, theirs.confidence, rtol=TOLERANCE[dtype], atol=1e-12)


def test_nan_and_certainty():
    logits = torch.full((1, 3, 126464), -30.0, device="cuda")
    logits[0, 0, 100000] = 30.0
    logits[0, 1, 77] = float("nan")
    found = choose(logits, Sampling(), LLADA, torch.float32)
    assert found.confidence[0, 0] == 1.0
    assert found.confidence.isfinite().tolist() == [[True, False, True]]
