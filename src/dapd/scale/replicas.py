"""The server on Ray Serve: several replicas behind one address, each with an engine and a model of its own.

Ray places the replicas, spreads requests over them, starts another where one has died, and lets them finish what they
have begun before they end. Requests are read by the same app as in one process.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from dapd.errors import DapdError, first_line
from dapd.io.wording import plural
from dapd.scale.on_ray import Cluster, connected
from dapd.scale.recipe import Recipe
from dapd.scale.team import PATIENCE, Spread
from dapd.server import Config, Engine, Limits, make_app
from dapd.server.run import CONNECTIONS

if TYPE_CHECKING:
    from fastapi import FastAPI

NAME = "dapd"
"""The name of the application in Ray Serve."""
HEALTH_SECONDS = 5.0
"""Seconds between two health checks of a replica."""
GLANCE = 0.2
"""Seconds between two looks at what the replicas are doing."""


@dataclass(frozen=True)
class Fleet:
    """How many replicas there are, and where."""

    replicas: int
    max_replicas: int | None = None
    """Most replicas under load; None: no more than `replicas`."""
    address: str | None = None
    """A Ray cluster that is running; None: one on this machine, which ends with the server."""
    patience: float = PATIENCE
    """Seconds until all replicas must be ready."""

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise DapdError(f"replicas is {self.replicas}; it must be at least 1")
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise DapdError(
                f"max-replicas is {self.max_replicas}; it must be at least the number of replicas, {self.replicas}"
            )

    @property
    def said(self) -> str:
        least = plural(self.replicas, "replica")
        return least if self.max_replicas is None else f"{least} and up to {self.max_replicas}"

    def sizing(self, limits: Limits) -> dict[str, Any]:
        """How many replicas Ray Serve keeps: those asked for, or one more whenever all places are taken."""
        if self.max_replicas is None:
            return {"num_replicas": self.replicas}
        bounds = {"min_replicas": self.replicas, "max_replicas": self.max_replicas}
        return {"autoscaling_config": {**bounds, "target_ongoing_requests": limits.places}}


class Replica:
    """One server among several: Ray Serve makes it, asks for its app, and checks its health."""

    def __init__(self, recipe: Recipe, config: Config) -> None:
        if recipe.device == "cpu":
            torch.set_num_threads(1)
        self.lm = recipe.load()
        self.config = config
        self.engine = Engine(self.lm, config.limits)

    def __serve_build_asgi_app__(self) -> FastAPI:
        return make_app(self.lm, self.engine, self.config)

    def check_health(self) -> None:
        """Raises where the engine's thread has died: another replica is then started in this one's place."""
        if not self.engine.thread.is_alive():
            raise RuntimeError("the engine has ended")


def serve_replicas(
    recipe: Recipe, config: Config, fleet: Fleet, tell: Callable[[str], None] = lambda text: None
) -> None:
    """Serve a model with several replicas until a signal ends it; `tell` is called when they are ready."""
    with connected(Spread(ray=True, address=fleet.address)) as cluster, running(recipe, config, fleet, cluster):
        ended = threading.Event()
        for one in (signal.SIGTERM, signal.SIGINT):
            signal.signal(one, lambda *_: ended.set())
        name = config.public_name(recipe.model)
        tell(f"{name} on {cluster.device(recipe)}, {fleet.said}, at {config.url()} (Ctrl-C ends it)")
        ended.wait()
        for one in (signal.SIGTERM, signal.SIGINT):
            signal.signal(one, signal.SIG_DFL)  # a second signal ends it at once


@contextmanager
def running(recipe: Recipe, config: Config, fleet: Fleet, cluster: Cluster) -> Iterator[None]:
    """Replicas that are ready; at the end they finish what they have begun."""
    from ray import serve

    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    _start(config)
    recipe = replace(recipe, device=cluster.device(recipe))
    application = deployment(recipe, config, fleet, cluster).bind(recipe, config)
    try:
        # Ray Serve would wait for replicas without end, also for those that no node has room for.
        serve.run_many([serve.RunTarget(application, NAME)], wait_for_applications_running=False)
        _wait_until_ready(fleet, cluster)
        yield
        _end(config.limits)
    finally:
        _leave(fleet)


def deployment(recipe: Recipe, config: Config, fleet: Fleet, cluster: Cluster) -> Any:
    """The replica as Ray Serve deploys it."""
    from ray import serve

    limits = config.limits
    return serve.deployment(serve.ingress()(Replica)).options(
        name="server",
        ray_actor_options=cluster.needs(recipe),
        # Ray lets more requests through than an engine takes: the engine refuses the excess itself, and its answer
        # says when to come back.
        max_ongoing_requests=limits.places + limits.queue + CONNECTIONS,
        max_queued_requests=CONNECTIONS,
        health_check_period_s=HEALTH_SECONDS,
        graceful_shutdown_timeout_s=limits.drain_seconds,
        graceful_shutdown_wait_loop_s=GLANCE,
        **fleet.sizing(limits),
    )


def _start(config: Config) -> None:
    """Start Ray Serve's own processes, trying again until PATIENCE is over. On a busy machine they may take longer than
    the minute that it waits, or its proxy may take so long that it replaces it."""
    from ray import serve
    from ray.exceptions import RayActorError

    end = time.monotonic() + PATIENCE
    while True:
        try:
            serve.start(http_options={"host": config.host, "port": config.port})
            return
        except (TimeoutError, RayActorError) as error:  # a second call goes on where the first one ended
            if time.monotonic() > end:
                raise DapdError(f"Ray Serve does not start: {first_line(error)}") from None


def _wait_until_ready(fleet: Fleet, cluster: Cluster) -> None:
    from ray import serve

    end = time.monotonic() + fleet.patience
    while True:
        status = serve.status()
        application = status.applications[NAME]
        if application.status == "RUNNING" and all(proxy == "HEALTHY" for proxy in status.proxies.values()):
            return
        *_, reason = " ".join(one.message for one in application.deployments.values()).splitlines() or [""]
        _, ours, mistake = reason.partition("DapdError: ")
        if ours or application.status == "DEPLOY_FAILED":  # Ray tries again, which does not help here
            raise DapdError(mistake or f"the replicas cannot start: {reason or application.message}")
        if time.monotonic() > end:
            raise DapdError(
                f"the replicas ({fleet.replicas} in all) are not all ready after {fleet.patience:g} s (free in the "
                f"cluster: {cluster.free()}); wait until other work ends, ask for fewer, or give a longer --patience"
            )
        time.sleep(GLANCE)


def _end(limits: Limits) -> None:
    """Delete the application, which waits until the replicas have finished their requests."""
    from ray import serve

    end = time.monotonic() + limits.drain_seconds
    while True:
        try:
            serve.delete(NAME)
            return
        except TimeoutError:  # it waits for a minute, which may be too short for what is being drained
            if time.monotonic() > end:
                return


def _leave(fleet: Fleet) -> None:
    """Remove the application from a cluster that goes on running; one that was started here ends anyway."""
    from ray import serve

    if fleet.address is not None:
        serve.delete(NAME)
        if not serve.status().applications:
            serve.shutdown()
