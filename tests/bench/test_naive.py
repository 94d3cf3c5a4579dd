"""The naive path is a second implementation of DAPD: it must decide as the engine does."""

import pytest
import torch
from torch import nn

from dapd import decode
from dapd.bench.naive import Scan, forward, naive_decode, projected
from dapd.bench.pace import Pace, random_canvas, with_pace, with_set_of
from dapd.errors import DapdError
from dapd.models import Capture, Transformer, random
from dapd.strategies import Dapd


def model(shape: str, sharpness: float = 8.0) -> Transformer:
    return random(shape, sharpness=sharpness)


@pytest.mark.parametrize("shape", ["tiny-llada", "tiny-dream"])
def test_forward_is_the_models(shape: str) -> None:
    net = model(shape)
    canvas = random_canvas(net, 12, 20, 2, half=True)
    columns = slice(0, canvas.length)
    layers = Dapd().attention.resolve(net.n_layers)  # type: ignore[union-attr]
    ours = net(canvas.tokens, columns, columns, capture=Capture(layers, columns, columns))
    logits, attention = forward(net, canvas.tokens, Dapd())
    torch.testing.assert_close(logits, ours.logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(attention, ours.attention, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scan", ["taken", "pairs"])
@pytest.mark.parametrize("shortcut", ["staged", "direct", "none"])
@pytest.mark.parametrize("shape", ["tiny-llada", "tiny-dream"])
def test_trajectory_is_the_engines(shape: str, shortcut: str, scan: Scan) -> None:
    net = model(shape, 12.0)
    canvas = random_canvas(net, 10, 24, 2)
    strategy = Dapd(0.3, 0.95, shortcut=shortcut)  # type: ignore[arg-type]
    ours = list(decode(net, canvas, strategy))
    theirs = list(naive_decode(net, canvas, strategy, scan=scan))
    assert len(ours) == len(theirs)
    assert max(int(step.commit.sum()) for step in ours) > canvas.batch
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a.commit, b.commit)
        assert torch.equal(a.canvas.tokens, b.canvas.tokens)


@pytest.mark.parametrize("pace", [Pace(), Pace(k=3), Pace(steps=7)])
def test_paced_trajectory_is_the_engines(pace: Pace) -> None:
    net = model("tiny-llada")
    canvas = random_canvas(net, 10, 24)
    strategy = with_set_of(net, canvas, Dapd(), 4)
    ours = list(decode(net, canvas, with_pace(strategy, pace)))
    theirs = list(naive_decode(net, canvas, strategy, pace=pace))
    assert [s.commit.tolist() for s in ours] == [s.commit.tolist() for s in theirs]
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
    with pytest.raises(DapdError, match="late_rule=union alone"):
        next(naive_decode(net, random_canvas(net, 4, 8), Dapd(late_rule="switch")))
