"""The results of a run by what was asked: those that are missing are made and kept as they come in."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from dapd.errors import DapdError
from dapd.evaluation.runs import Record, Run
from dapd.evaluation.world import World

T = TypeVar("T")

Key = Any
"""A name or a tuple of names and numbers."""


def digest(*parts: Any) -> str:
    """A short checksum of plain values."""
    return hashlib.sha256(repr(parts).encode(errors="surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True)
class Job(Generic[T]):
    """One result that is asked for."""

    key: Key
    """What tells it from all other results of the run."""
    digest: str
    """A checksum of whatever else decides it: under the same key, another digest is the answer to something else."""
    what: T
    """What the work needs to know of it."""


class Ledger:
    """The results of a run by their key, in a folder or only here.

    Every record has a column `digest`. Of several records under one key, which processes leave that were started twice
    in one folder, the first one counts.
    """

    def __init__(self, run: Run | None, key: Callable[[Record], Key], world: World | None = None) -> None:
        self.run = run
        self.key = key
        self.world = world or World()
        self.held: dict[Key, Record] = {}
        self._started = False
        if run is not None:
            self._hold(run.records())

    def fill(
        self,
        jobs: Sequence[Job[T]],
        work: Callable[[list[Job[T]]], Iterable[Record]],
        progress: Callable[[int], None] = lambda n: None,
    ) -> list[Record]:
        """A record for each job, in their order: those that are held, and the others by `work`, as they come.

        Several processes share the jobs out among them, and all return all of the records.
        """
        mine = self.world.share(list(jobs))
        missing = [job for job in mine if not self._holds(job)]
        progress(len(mine) - len(missing))
        made: list[Record] = []
        for record in work(missing) if missing else ():
            self._write(record)
            made.append(record)
            progress(1)
        self._hold(self.world.gather(made))
        for job in jobs:
            if not self._holds(job):
                raise DapdError(f"no result for {job.key}: the processes do not see the same folder of results")
        return [self.held[job.key] for job in jobs]

    @property
    def _where(self) -> str:
        return "this run" if self.run is None else str(self.run.folder)

    @property
    def _otherwise(self) -> str:
        return "ask it in another run" if self.run is None else self.run.otherwise

    def _holds(self, job: Job[Any]) -> bool:
        record = self.held.get(job.key)
        if record is not None and record["digest"] != job.digest:
            raise DapdError(
                f"{self._where}: what is kept for {job.key} answers another question: its text or its settings "
                f"changed since; {self._otherwise}"
            )
        return record is not None

    def _hold(self, records: Iterable[Record]) -> None:
        for record in records:
            if "digest" not in record:
                raise DapdError(f"{self._where} holds results of another kind, without digests; nothing was changed")
            try:
                key = self.key(record)
            except KeyError as error:
                raise DapdError(f"{self._where} holds results of another kind, without {error}") from None
            self.held.setdefault(key, record)

    def _write(self, record: Record) -> None:
        if self.run is None:
            return
        if not self._started:
            self.run.note_environment()
            self._started = True
        self.run.append([record])
