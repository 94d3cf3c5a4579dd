"""The options of commands whose work can be spread over workers, and the model that they get."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from dapd.cli.models import calm_threads
from dapd.errors import DapdError
from dapd.evaluation.world import local_device
from dapd.generation import DiffusionLM
from dapd.models.devices import pick_dtype
from dapd.scale.recipe import Recipe
from dapd.scale.team import Spread, gathered

Workers = Annotated[
    int, typer.Option(min=1, metavar="N", help="Number of processes that decode; each uses a GPU if there are GPUs.")
]
Address = Annotated[str | None, typer.Option(help="Run the workers on a running Ray cluster: HOST:PORT, or auto.")]


def note(text: str) -> None:
    """Tell the user something in addition to the results."""
    print(f"note: {text}", file=sys.stderr, flush=True)


@contextmanager
def resumable(how: Callable[[], str] = lambda: "the same command continues from here") -> Iterator[None]:
    """Inside this context a user who interrupts the work is told how to continue it."""
    try:
        yield
    except KeyboardInterrupt:
        note(f"interrupted; {how()}")
        raise


@contextmanager
def model(
    name: str,
    *,
    spread: Spread,
    batch: int,
    device: str | None,
    dtype: str | None,
    fp8: bool = False,
) -> Iterator[DiffusionLM]:
    """The model of an evaluation: here, or spread over workers."""
    if not spread.is_here and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise DapdError("torchrun divides the work already; leave out --workers and --address")
    where = device or local_device() if spread.is_here else device
    with gathered(Recipe(name, where, pick_dtype(dtype), fp8, batch), spread, note) as team:
        if spread.is_here:
            calm_threads(team.lm.network)
        yield team.lm
