"""Workers on a Ray cluster. Ray places them, moves data, and repeats work that was lost with a node; one process inside
each worker decodes, as on one machine, so that a text that kills it can be identified and given up."""

from __future__ import annotations

import logging
import os
import pickle
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dapd.errors import DapdError, first_line, missing_extra
from dapd.models.devices import pick_device
from dapd.scale.recipe import Recipe
from dapd.scale.work import Ask, Call, Outcome
from dapd.scale.workers import Processes, packed

if TYPE_CHECKING:
    from dapd.scale.team import Spread

CPUS = 0.5
"""CPUs that a worker reserves, whether it has a GPU or not. Less than a whole one: workers that hold every CPU would
leave none for Ray's own tasks, and for a worker that has to move."""
ROUNDS = 4
"""The most asks in a piece of work, for each place of a worker: within a piece, freed places are filled at once. It is
also roughly the least number of pieces for each worker."""
LOST = {"max_restarts": -1, "max_task_retries": -1}
"""Options with which a worker that is lost with its node, and its piece of work, start again elsewhere. The number of
tries is not limited, because while a worker moves, every call that cannot reach it counts as one."""

KNOCK_SECONDS = 10.0
"""Seconds within which a cluster's address must take a connection."""
QUIET = {"RAY_DATA_LOG_LEVEL": "ERROR", "RAY_BACKEND_LOG_LEVEL": "fatal"}
"""Environment variables that keep Ray's own messages from the user."""


@dataclass(frozen=True)
class Cluster:
    """A cluster to which this process gives work."""

    spread: Spread
    totals: dict[str, float]
    """The resources of all its nodes together, by name (CPU, GPU, ...)."""

    def device(self, recipe: Recipe) -> str:
        """The kind of device that workers run on."""
        if recipe.device in (None, "auto"):
            return "cuda" if self.totals.get("GPU") else "cpu"
        return pick_device(recipe.device).type if recipe.device == "cpu" else "cuda"

    def needs(self, recipe: Recipe) -> dict[str, float]:
        """The resources that Ray reserves for a worker."""
        return {"num_cpus": CPUS, "num_gpus": 1 if self.device(recipe) == "cuda" else 0}

    def free(self) -> str:
        """The resources of the cluster that are free, in words."""
        import ray

        free = ray.available_resources()
        kinds = [kind for kind in ("CPU", "GPU") if self.totals.get(kind)]
        return ", ".join(f"{free.get(kind, 0):g} of {self.totals[kind]:g} {kind}s" for kind in kinds) or "nothing"

    def late(self) -> DapdError:
        """The error for a cluster from which no result comes any more."""
        return DapdError(
            f"no result came from the cluster for {self.spread.patience:g} s (free there: {self.free()}); wait until "
            "other work there ends, ask for fewer workers, or give a longer --patience; finished results are kept"
        )


@contextmanager
def connected(spread: Spread) -> Iterator[Cluster]:
    """A cluster for some work: one that is running, or one on this machine that ends with the work."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise missing_extra("ray", "ray", "work on a Ray cluster") from None
    mine = not ray.is_initialized()
    if mine:
        _knock(spread.address)
        try:
            ray.init(
                address=spread.address or "local",
                log_to_driver=False,
                logging_level=logging.ERROR,
                **({} if spread.address else {"include_dashboard": False}),
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise DapdError(f"no Ray cluster at {spread.address or 'this machine'}: {first_line(error)}") from None
    try:
        yield Cluster(spread, ray.cluster_resources())
    finally:
        if mine:
            ray.shutdown()


def _knock(address: str | None) -> None:
    """Refuse an address that takes no connection: Ray itself would try for minutes."""
    host, colon, port = (address or "").rpartition(":")
    if not colon or "://" in host or not port.isdigit():
        return  # a name of Ray's own, such as auto
    try:
        socket.create_connection((host, int(port)), timeout=KNOCK_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise DapdError(f"no Ray cluster at {address}: {first_line(error)}") from None


class Seat:
    """A worker's place in the cluster: an actor, with a process that decodes."""

    def __init__(self, recipe: Recipe) -> None:
        self.processes = Processes(recipe, 1)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """A piece of work as Ray Data hands it over, in columns."""
        found = self.outcomes(list(zip(batch["number"].tolist(), batch["ask"].tolist(), strict=True)))
        return {"number": [number for number, _ in found], "outcome": [pickle.dumps(value) for _, value in found]}

    def outcomes(self, asks: Sequence[tuple[int, bytes]]) -> list[Outcome]:
        """The outcomes of a piece of work, with the asks' numbers in the whole work."""
        try:
            found = list(self.processes.outcomes([ask for _, ask in asks]))
        except DapdError as error:  # as a value it arrives unchanged; Ray would wrap an exception in words of its own
            return [(number, error) for number, _ in asks]
        return [(asks[place][0], value) for place, value in found]


@dataclass(frozen=True)
class Stream:
    """Work whose asks are all known at once: it goes through Ray Data."""

    cluster: Cluster
    recipe: Recipe

    def outcomes(self, asks: Sequence[Ask | Call]) -> Iterator[Outcome]:
        """One outcome for every ask; an error is raised if none comes for too long."""
        from ray.data.exceptions import ExecutionTimeoutError
        from ray.exceptions import RayError

        try:
            for row in self._dataset(asks).iter_rows():
                yield _checked((row["number"], pickle.loads(row["outcome"])))
        except ExecutionTimeoutError:
            raise self.cluster.late() from None
        except RayError as error:
            raise _given_up(error) from None

    def _dataset(self, asks: Sequence[Ask | Call]) -> Any:
        import ray.data

        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_no_progress_timeout_s = self.cluster.spread.patience
        n = self.cluster.spread.workers
        piece = _piece(self.recipe, n, len(asks))
        items = [{"number": number, "ask": packed(ask)} for number, ask in enumerate(asks)]
        return ray.data.from_items(items, override_num_blocks=-(-len(items) // piece)).map_batches(
            Seat,
            fn_constructor_args=(self.recipe,),
            batch_size=None,
            compute=ray.data.ActorPoolStrategy(size=n),  # which restarts and retries as LOST says
            **self.cluster.needs(self.recipe),
        )


class Actors:
    """Work that comes in several calls: actors keep their model in between."""

    def __init__(self, cluster: Cluster, recipe: Recipe) -> None:
        import ray

        self.cluster = cluster
        self.recipe = recipe
        seat = ray.remote(Seat).options(**cluster.needs(recipe), **LOST)
        self.seats = [seat.remote(recipe) for _ in range(cluster.spread.workers)]

    def __enter__(self) -> Actors:
        return self

    def __exit__(self, *_: object) -> None:
        import ray

        for seat in self.seats:
            ray.kill(seat)

    def outcomes(self, asks: Sequence[Ask | Call]) -> Iterator[Outcome]:
        from ray.exceptions import RayError
        from ray.util import ActorPool

        numbered = [(number, packed(ask)) for number, ask in enumerate(asks)]
        piece = _piece(self.recipe, len(self.seats), len(asks))
        pool = ActorPool(self.seats)
        for first in range(0, len(numbered), piece):
            pool.submit(lambda seat, part: seat.outcomes.remote(part), numbered[first : first + piece])
        while pool.has_next():
            try:
                found = pool.get_next_unordered(timeout=self.cluster.spread.patience)
            except TimeoutError:
                raise self.cluster.late() from None
            except RayError as error:
                raise _given_up(error) from None
            yield from map(_checked, found)


def _checked(outcome: Outcome) -> Outcome:
    """An outcome, unless it says that the worker cannot work at all."""
    if isinstance(outcome[1], DapdError):
        raise outcome[1]
    return outcome


def _given_up(error: Exception) -> DapdError:
    cause = getattr(error, "cause", None)
    return DapdError(f"the cluster gave up the work: {first_line(cause or error)}")


def _piece(recipe: Recipe, workers: int, n_asks: int) -> int:
    """The asks in a piece of work: enough to keep the places filled, few enough for every worker to have some."""
    return max(1, min(ROUNDS * recipe.places, -(-n_asks // (ROUNDS * workers))))
