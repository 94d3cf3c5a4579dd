"""One Ray cluster for all tests that need one: to start it takes longer than most of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from scale.jobs import PATIENCE

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

DEATH_IS_NOTICED_SOON = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500}
"""Ray waits half a minute by itself before it calls a node dead."""


@pytest.fixture(scope="package")
def cluster() -> Iterator[Cluster]:
    """A node with a CPU, which is room for two workers. It has no more of Ray's own processes than it must."""
    ray = pytest.importorskip("ray", reason="the ray extra is not installed")
    from ray.cluster_utils import Cluster

    try:
        head = {"num_cpus": 1, "include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
        nodes = Cluster(initialize_head=True, head_node_args={**head, "_system_config": DEATH_IS_NOTICED_SOON})
        nodes.wait_for_nodes(timeout=PATIENCE)
    except Exception as error:
        pytest.skip(f"Ray starts no cluster on this machine: {error}")
    yield nodes
    ray.shutdown()
    nodes.shutdown()
