"""The independent set on a GPU against the rounds in torch on the CPU: bit for bit, and without a transfer."""

import pytest
import torch

from dapd import graph

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("n", [5, 256, 1000, 1024, 2048, 4096])
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_to_torch_and_without_a_sync(n, batch, dtype):
    generator = torch.Generator().manual_seed(n + batch)
    for density in (0.0, 3 / n, 0.05, 0.9, 1.0):
        blocks = torch.rand(batch, n, n, generator=generator) < density
        priority = (torch.randint(n, (batch, n), generator=generator) / n).to(dtype)
        priority[:, 0], priority[:, -1] = float("nan"), float("-inf")
        nodes = torch.rand(batch, n, generator=generator) < 0.8
        want = graph.independent_set(blocks, priority, nodes)
        args = blocks.cuda(), priority.cuda(), nodes.cuda()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            got = graph.independent_set(*args)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert torch.equal(got.cpu(), want)


def test_a_long_chain_of_blockers():
    n = 1024
    blocks = torch.diag(torch.ones(n - 1, dtype=torch.bool), -1).cuda()
    taken = graph.independent_set(blocks, torch.arange(n, 0, -1.0).cuda(), torch.ones(n, dtype=torch.bool).cuda())
    assert taken.tolist() == [True, False] * (n // 2)
