"""Throughput and cost from one GPU to a thousand, by arithmetic whose every assumption is an option.

    python experiments/scale_model.py                              # LLaDA-8B on H200s, docs/scaling.md
    python experiments/scale_model.py --measured replicas.json     # and the check against scale_replicas.py

Replicas share nothing but the proxies, so `n` of them do `n` times the work of one. A pass of one text costs `row_ms`
in full batches, whatever the number of texts that share it, because passes are compute-bound. The planned load keeps
`x` replicas busy and leaves the square root of `x` free, so that requests that come at random seldom wait. The last
line is JSON.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from dapd.cli import run
from dapd.errors import DapdError
from dapd.io.files import parse_json
from dapd.io.table import Table

SIZES = (1, 2, 8, 32, 128, 512, 1000)


@dataclass(frozen=True)
class Assumptions:
    """The assumptions of the model."""

    row_ms: float
    """Milliseconds for one pass of one text in full batches."""
    passes: float
    """Passes that a text takes."""
    tokens: float
    """New tokens of a text."""
    loss: float
    """Cost of padding and half-full batches: seconds needed for each second of the ideal."""
    batch: int
    """Texts that share a pass, all of which are lost when their replica dies."""
    gpus_a_node: int
    """GPUs that share a machine and its proxy."""
    dollars: float
    """Price of a GPU for an hour."""
    failures: float
    """Failures of a GPU in a year."""
    restart_seconds: float
    """Seconds until another replica is ready."""

    @property
    def rate(self) -> float:
        """Requests a second that one replica can do."""
        return 1000 / (self.row_ms * self.loss * self.passes)

    @property
    def availability(self) -> float:
        return 1 - self.failures * self.restart_seconds / (365 * 24 * 3600)


@dataclass(frozen=True)
class Size:
    """The throughput and cost of a number of GPUs."""

    gpus: int
    nodes: int
    most: float
    """Requests a second at which every replica is busy."""
    planned: float
    """Requests a second that leave enough replicas free, see `size`."""
    tokens: float
    """New tokens a second, as planned."""
    proxy: float
    """Requests a second of each machine's proxy, as planned."""
    dollars_an_hour: float
    dollars_a_million: float
    """Price of a million new tokens, as planned."""
    lost_a_day: float
    """Requests that end in an error because their replica died."""


def size(gpus: int, given: Assumptions) -> Size:
    """The throughput and cost of `gpus` GPUs. A load that keeps `x` replicas busy needs x + sqrt(x) of them."""
    busy = (math.sqrt(gpus + 0.25) - 0.5) ** 2
    nodes = math.ceil(gpus / given.gpus_a_node)
    planned = busy * given.rate * given.availability
    tokens, dollars = planned * given.tokens, gpus * given.dollars
    return Size(
        gpus=gpus,
        nodes=nodes,
        most=gpus * given.rate * given.availability,
        planned=planned,
        tokens=tokens,
        proxy=planned / nodes,
        dollars_an_hour=dollars,
        dollars_a_million=1e6 * dollars / (3600 * tokens),
        lost_a_day=busy * given.failures / 365 * given.batch,
    )


def replicas(requests: float, given: Assumptions) -> int:
    """Number of replicas that a load in requests per second needs."""
    busy = requests / given.rate
    return math.ceil(busy + math.sqrt(busy))


def table(given: Assumptions) -> Table:
    head = ("GPUs", "machines", "requests/s at most", "planned", "tokens/s", "requests/s a proxy", "$ an hour")
    rows = []
    for one in (size(gpus, given) for gpus in SIZES):
        rates = (f"{one.most:,.1f}", f"{one.planned:,.1f}", f"{one.tokens:,.0f}", f"{one.proxy:.1f}")
        money = (f"{one.dollars_an_hour:,.0f}", f"{one.dollars_a_million:.2f}")
        rows.append((f"{one.gpus:,}", str(one.nodes), *rates, *money, f"{one.lost_a_day:.1f}"))
    return Table((*head, "$ a million tokens", "requests lost a day"), rows, words=0)


def check(path: Path) -> Table:
    """The measurements of `scale_replicas.py` beside the model's predictions for the same replicas."""
    try:
        figures = parse_json(path.read_text(encoding="utf-8"))["figures"]
        base, *others = [(one["replicas"], one["requests"], one["passes"], one["seconds"]) for one in figures]
    except OSError as error:
        raise DapdError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DapdError(f"{path} is not what scale_replicas.py writes: {error}") from None
    row_seconds = base[3] / base[2]
    rows = []
    for n, requests, passes, seconds in others:
        said = n * requests / (passes * row_seconds)
        rows.append((str(n), f"{said:.3f}", f"{requests / seconds:.3f}", f"{requests / seconds / said:.2f}"))
    return Table(("replicas", "requests/s by the model", "measured", "ratio"), rows, words=0)


def main(
    row_ms: Annotated[float, typer.Option(help="ms a pass and text in full batches.")] = 94.0 / 8,
    passes: Annotated[float, typer.Option(help="Passes of a text.")] = 45,
    tokens: Annotated[float, typer.Option(help="New tokens of a text.")] = 256,
    loss: Annotated[float, typer.Option(help="Padding and half-full batches.")] = 1.12,
    batch: Annotated[int, typer.Option(help="Texts that share a pass.")] = 8,
    gpus_a_node: Annotated[int, typer.Option(help="GPUs of a machine.")] = 8,
    dollars: Annotated[float, typer.Option(help="Price of a GPU for an hour.")] = 3.0,
    failures: Annotated[float, typer.Option(help="Failures of a GPU in a year.")] = 1.0,
    restart_seconds: Annotated[float, typer.Option(help="Until another replica is ready.")] = 300.0,
    requests: Annotated[float | None, typer.Option(help="Also: the replicas for so many requests/s.")] = None,
    measured: Annotated[Path | None, typer.Option(help="Also: what scale_replicas.py wrote, as a check.")] = None,
) -> None:
    """Print throughput and cost up to a thousand GPUs."""
    given = Assumptions(row_ms, passes, tokens, loss, batch, gpus_a_node, dollars, failures, restart_seconds)
    for name, value in vars(given).items():
        if not value > 0:
            raise DapdError(f"{name} is {value}; it must be above 0")
    print(table(given).to_markdown())
    content: dict[str, Any] = {**asdict(given), "sizes": [asdict(size(gpus, given)) for gpus in SIZES]}
    if requests is not None:
        content["replicas"] = replicas(requests, given)
        print(f"{requests:g} requests/s want {content['replicas']} replicas\n")
    if measured is not None:
        print(check(measured).to_markdown())
    print(json.dumps(content))


if __name__ == "__main__":
    run(main)
