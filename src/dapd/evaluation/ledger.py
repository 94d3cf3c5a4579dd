"""The results of a run by key: those that are missing are made and kept as they come in."""

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
    """A result that a run should have."""

    key: Key
    """The key that the result is kept under; no other result of the run has the same key."""
    digest: str
    """A checksum of everything else that decides the result: under the same key, a record with another digest answers
    a different question."""
    what: T
    """The input of the work that makes the result."""


class Ledger:
    """The results of a run by their key, kept in a folder or, without a run, in memory alone.

    Every record has a column `digest`. Where several records have one key, because a run was started twice in one
    folder, the first one counts.
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
        """A record for each job, in order. Those that are not held yet are made by `work` and kept as they come.

        Several processes divide the jobs among them, and each returns all records.
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
                f"{self._where}: the result kept for {job.key} was made for another text or with other settings; "
                f"{self._otherwise}"
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
