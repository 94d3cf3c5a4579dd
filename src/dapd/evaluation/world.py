"""Several processes that share one evaluation, as `torchrun` and `accelerate launch` start them."""

from __future__ import annotations

import atexit
import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from dapd.errors import DapdError

T = TypeVar("T")

PATIENCE = timedelta(days=7)
"""How long a process waits for the slowest; a launcher ends all of them when one fails."""


@dataclass(frozen=True)
class World:
    """Which of how many processes this is."""

    rank: int = 0
    size: int = 1

    @classmethod
    def from_environment(cls) -> World:
        """What the launcher says; one process where there was none."""
        try:
            world = cls(int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)))
        except ValueError:
            raise DapdError("RANK and WORLD_SIZE in the environment must be whole numbers") from None
        if world.size > 1 and not dist.is_initialized():
            if "MASTER_ADDR" not in os.environ:
                raise DapdError("WORLD_SIZE is set but MASTER_ADDR is not: start with torchrun or accelerate launch")
            # Only plain objects travel, so gloo does on every device.
            dist.init_process_group("gloo", timeout=PATIENCE)
            # Threads of the group that outlive the interpreter abort the process now and then.
            atexit.register(dist.destroy_process_group)
        return world

    def share(self, items: list[T]) -> list[T]:
        """Every size-th item: it depends on the item's place alone, not on how far the others are."""
        return items[self.rank :: self.size]

    def gather(self, mine: list[T]) -> list[T]:
        """What all processes bring, in all of them; waits for the last."""
        if self.size == 1:
            return mine
        shares: list[Any] = [None] * self.size
        dist.all_gather_object(shares, mine)
        return [item for share in shares for item in share]


def local_device() -> str | None:
    """The GPU of this process on its machine; None: no launcher, or nothing to choose from."""
    count = torch.cuda.device_count()
    local = os.environ.get("LOCAL_RANK")
    return f"cuda:{int(local) % count}" if local is not None and count else None
