"""Toy networks are so small that a second thread costs more than it brings."""

import pytest
import torch

from dapd.mrf.network import Shape, StackedRADD, initialise


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def stack() -> StackedRADD:
    """Three small untrained models whose last layer is not zero, so that they differ."""
    network = StackedRADD(3, Shape(n_layers=4, width=16, n_heads=2))
    initialise(network, [5, 6, 7], [1.0, 0.0, 1.0])
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        network.head.copy_(torch.randn(network.head.shape, generator=generator))
    return network.requires_grad_(False)
