"""A model and the workers that decode with it, for the duration of a command."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from dapd.canvas import Canvas
from dapd.decoding import Constraint, Options, Step
from dapd.errors import DapdError
from dapd.generation import AnyStrategy, Completion, DiffusionLM
from dapd.generation.model import R, T
from dapd.models.devices import pick_device
from dapd.scale.recipe import Recipe
from dapd.scale.work import Call, Crew, Failure, Given, Order, Outcome, Worker
from dapd.scale.workers import Processes, devices
from dapd.settings import DEFAULT_STRATEGY, as_setting

PATIENCE = 600.0
"""Seconds without any result after which a cluster is given up."""


@dataclass(frozen=True)
class Spread:
    """How work is spread over workers."""

    workers: int = 1
    ray: bool = False
    """Whether to start a Ray cluster on this machine, for as long as the work takes."""
    address: str | None = None
    """Address of a Ray cluster that is running; None: none is used, unless `ray` starts one."""
    patience: float = PATIENCE
    """With Ray: seconds without any result after which it is given up."""

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise DapdError(f"workers is {self.workers}; it must be at least 1")
        if not self.patience > 0:
            raise DapdError(f"patience is {self.patience}; it must be above 0")

    @property
    def on_ray(self) -> bool:
        return self.ray or self.address is not None

    @property
    def is_here(self) -> bool:
        """Whether this process does the work itself."""
        return self.workers == 1 and not self.on_ray


@dataclass(frozen=True)
class Team:
    """A model, and the workers that decode with it."""

    lm: DiffusionLM
    crew: Crew


@contextmanager
def gathered(
    recipe: Recipe, spread: Spread, tell: Callable[[str], None] = lambda text: None, *, in_one: bool = False
) -> Iterator[Team]:
    """The team for some work, which ends with the context. `in_one`: all asks come at once, as Ray Data needs it."""
    if spread.is_here:
        lm = recipe.load()
        yield Team(lm, Worker(lm, recipe.places))
        return
    with ExitStack() as stack:
        if spread.on_ray:
            from dapd.scale import on_ray

            cluster = stack.enter_context(on_ray.connected(spread))
            here = recipe.here(cluster.device(recipe))
            recipe = recipe.for_workers_of(here)
            crew: Crew = (
                on_ray.Stream(cluster, recipe) if in_one else stack.enter_context(on_ray.Actors(cluster, recipe))
            )
        else:
            device = devices(recipe.device, spread.workers)[0]
            here = recipe.here(pick_device(device).type)
            crew = stack.enter_context(Processes(recipe.for_workers_of(here), spread.workers, tell))
        yield Team(SpreadLM(here, crew), crew)


class SpreadLM(DiffusionLM):
    """A model whose texts are decoded by workers; this process prepares the asks and handles the results."""

    def __init__(self, here: DiffusionLM, crew: Crew) -> None:
        super().__init__(here.network, lambda: here.tokenizer, name=here.name)
        self.crew = crew

    def complete(
        self,
        canvases: Sequence[Canvas],
        *,
        strategy: AnyStrategy = DEFAULT_STRATEGY,
        options: Options | None = None,
        batch_size: int | None = None,
        watchers: Sequence[Callable[[Step], None]] = (),
        constraint: Constraint | None = None,
    ) -> Iterator[tuple[int, Completion]]:
        """As without workers, but `batch_size` is ignored: a worker has its own number of places."""
        if watchers or constraint is not None:
            raise DapdError("workers cannot report single passes or keep to a form; use one process")
        chosen = as_setting(strategy)
        options = chosen.with_blocks(options or Options())
        seeds = options.seeds(len(canvases))
        asks = [
            Given(Order(canvas, chosen.strategy, replace(options, seed=seed)))
            for canvas, seed in zip(canvases, seeds, strict=True)
        ]
        return map(_certain, self.crew.outcomes(asks))

    def each(self, function: Callable[[DiffusionLM, T], R], items: Sequence[T]) -> Iterator[tuple[int, R]]:
        return map(_certain, self.crew.outcomes([Call(function, item) for item in items]))


def _certain(outcome: Outcome) -> Outcome:
    """An outcome that is a result. A failure is raised: in an evaluation every text must have a result."""
    if isinstance(outcome[1], Failure):
        raise outcome[1].error()
    return outcome
