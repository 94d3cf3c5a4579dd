"""The naive path is a second implementation of DAPD: it must decide as the engine does."""

import pytest
import torch
from torch import nn

from dapd.bench.naive import Scan, forward, naive_decode, projected
from dapd.bench.pace import Pace, Paced, passes, random_canvases, with_set_of
from dapd.decoding import Options
from dapd.errors import DapdError
from dapd.models import Capture, Transformer, random
from dapd.strategies import Dapd


def model(shape: str, sharpness: float = 8.0) -> Transformer:
    return random(shape, sharpness=sharpness)


@pytest.mark.parametrize("shape", ["tiny-llada", "tiny-dream"])
def test_forward_is_the_models(shape: str) -> None:
    net = model(shape)
    tokens = torch.stack([canvas.tokens for canvas in random_canvases(net, 12, 20, 2, half=True)])
    columns = slice(0, tokens.shape[1])
    layers = Dapd().needs.attention.resolve(net.n_layers)  # type: ignore[union-attr]
    ours = net(tokens, columns, columns, capture=Capture(layers))
    logits, attention = forward(net, tokens, Dapd())
    torch.testing.assert_close(logits, ours.logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(attention, ours.attention, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scan", ["taken", "pairs"])
@pytest.mark.parametrize("shortcut", ["staged", "direct", "none"])
@pytest.mark.parametrize("shape", ["tiny-llada", "tiny-dream"])
def test_trajectory_is_the_engines(shape: str, shortcut: str, scan: Scan) -> None:
    net = model(shape, 12.0)
    canvases = random_canvases(net, 10, 24, 2)
    strategy = Dapd(0.3, 0.95, shortcut=shortcut)  # type: ignore[arg-type]
    ours = list(passes(net, canvases, strategy, Options()))
    theirs = list(naive_decode(net, canvases, strategy, scan=scan))
    assert len(ours) == len(theirs)
    assert max(int(step.commit.sum()) for steps in ours for step in steps) > 1
    for steps, after in zip(ours, theirs, strict=True):
        for step in steps:
            assert torch.equal(step.canvas.tokens, after[step.row].tokens)


@pytest.mark.parametrize("pace", [Pace(), Pace(k=3), Pace(steps=7)])
def test_paced_trajectory_is_the_engines(pace: Pace) -> None:
    net = model("tiny-llada")
    canvases = random_canvases(net, 10, 24)
    strategy = with_set_of(net, canvases, Dapd(), 4)
    ours = [steps[0].canvas.tokens.tolist() for steps in passes(net, canvases, Paced(strategy, pace), Options())]
    theirs = [after[0].tokens.tolist() for after in naive_decode(net, canvases, strategy, pace=pace)]
    assert ours == theirs
    assert len(ours) == {Pace(): 24, Pace(k=3): 8, Pace(steps=7): 7}[pace]


@pytest.mark.parametrize("bias", [True, False])
def test_packed_projections_give_the_same(bias: bool) -> None:
    apart = [nn.Linear(8, size, bias=bias) for size in (8, 4, 4)]
    packed = nn.Linear(8, 16, bias=bias)
    with torch.no_grad():
        packed.weight.copy_(torch.cat([part.weight for part in apart]))
        if bias:
            packed.bias.copy_(torch.cat([part.bias for part in apart]))
    h = torch.randn(1, 3, 8)
    for part, made in zip(apart, projected(packed, (8, 4, 4), h), strict=True):
        torch.testing.assert_close(made, part(h))


def test_what_it_does_not_know_is_an_error() -> None:
    net = model("tiny-llada")
    with pytest.raises(DapdError, match="late_rule=union only"):
        next(naive_decode(net, random_canvases(net, 4, 8), Dapd(late_rule="switch")))
