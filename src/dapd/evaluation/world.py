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
"""How long a process waits for the slowest one; when a process fails, the launcher ends all others."""


@dataclass(frozen=True)
class World:
    """The rank of this process, and the number of processes."""

    rank: int = 0
    size: int = 1

    @classmethod
    def from_environment(cls) -> World:
        """Rank and size as the launcher set them in the environment; one process where there was no launcher."""
        try:
            world = cls(int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)))
        except ValueError:
            raise DapdError("RANK and WORLD_SIZE in the environment must be whole numbers") from None
        if world.size > 1 and not dist.is_initialized():
            if "MASTER_ADDR" not in os.environ:
                raise DapdError("WORLD_SIZE is set but MASTER_ADDR is not: start with torchrun or accelerate launch")
            # Only plain objects are exchanged, for which gloo is enough on every device.
            dist.init_process_group("gloo", timeout=PATIENCE)
            # Threads of the group that outlive the interpreter abort the process now and then.
            atexit.register(dist.destroy_process_group)
        return world

    def share(self, items: list[T]) -> list[T]:
        """This process's items: every `size`-th one, which depends on their order alone and not on what is done yet."""
        return items[self.rank :: self.size]

    def gather(self, mine: list[T]) -> list[T]:
        """The items of all processes, which every process gets; it waits for the last one."""
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
