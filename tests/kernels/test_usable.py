"""When the kernels, which have no backward pass, are left aside."""

import pytest
import torch

from dapd import kernels
from dapd.kernels import norm


@pytest.fixture(autouse=True)
def on_a_device(monkeypatch):
    monkeypatch.setattr(kernels, "interpreted", lambda: True)
    monkeypatch.setattr(kernels, "_triton", lambda: True)


def test_not_where_a_gradient_is_wanted():
    plain, trained = torch.zeros(1), torch.zeros(1, requires_grad=True)
    assert kernels.usable(plain)
    assert not kernels.usable(trained)
    assert not kernels.usable(plain, plain, trained)
    with torch.no_grad():
        assert kernels.usable(plain, trained)
    with torch.inference_mode():
        assert kernels.usable(trained)


def test_a_norm_looks_at_weight_and_residual():
    x, y = torch.randn(2, 3, 16), torch.randn(2, 3, 16, requires_grad=True)
    plain, trained = torch.ones(16), torch.ones(16, requires_grad=True)
    assert norm.add_rms_norm(x, x, trained, 1e-5).normed.requires_grad
    added = norm.add_rms_norm(x, y, plain, 1e-5)
    assert added.total.requires_grad
    assert added.normed.requires_grad


def test_launched_early_on_hopper_alone(monkeypatch):
    """Not by the interpreter, which cannot wait, and not by other makes."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (device.index or 0, 0))

    class On:
        def __init__(self, capability):
            self.is_cuda, self.device = True, torch.device("cuda", capability)

    kernels._has_dependent_launch.cache_clear()
    assert kernels.dependent_launch(On(9)) == {"PDL": False}, "under the interpreter"
    monkeypatch.setattr(kernels, "interpreted", lambda: False)
    assert kernels.dependent_launch(On(9)) == {"PDL": True, "launch_pdl": True}
    assert kernels.dependent_launch(On(8)) == kernels.dependent_launch(torch.zeros(1)) == {"PDL": False}
    monkeypatch.setattr(torch.version, "hip", "6.4")
    kernels._has_dependent_launch.cache_clear()
    assert kernels.dependent_launch(On(9)) == {"PDL": False}
    kernels._has_dependent_launch.cache_clear()
