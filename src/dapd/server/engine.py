"""The engine: one thread that owns the device and advances all texts by one pass at a time."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Sequence

from dapd.decoding import Decoder, Step
from dapd.errors import DapdError
from dapd.generation import DiffusionLM
from dapd.server.config import Limits
from dapd.server.jobs import Failed, Finished, Job, Reason
from dapd.server.metrics import Metrics

logger = logging.getLogger("dapd.server")

HEAD_START = 10.0
"""Seconds by which the longest possible text is moved back in the queue; a shorter one is moved back in proportion to
its length. So short texts go first, and none waits forever."""
LONG_SHARE = 4
"""With 4, a text is long if its canvas is longer than a quarter of the longest possible one, and a quarter of the
places is kept free of long texts."""


class BusyError(DapdError):
    """The queue is full."""

    def __init__(self, retry_after: int) -> None:
        super().__init__("the server is busy; try again later")
        self.retry_after = retry_after


class ClosedError(DapdError):
    """The server takes no more requests."""


class Engine:
    """Decodes jobs that come and go.

    `submit` and `cancel` may be called from any thread. Events are reported through `Job.tell`, which the engine calls
    on its own thread after a pass; it must not block.
    """

    def __init__(self, lm: DiffusionLM, limits: Limits, metrics: Metrics | None = None) -> None:
        self.lm = lm
        self.limits = limits
        self.metrics = metrics or Metrics()
        self.decoder = self._decoder()
        self.queue: list[Job] = []
        self.running: dict[Job, None] = {}
        """The jobs that have a place, in the order in which they got it. Only the engine's thread changes it."""
        self.cancelled: set[Job] = set()
        """Cancelled jobs that are still to be removed."""
        self.draining = False
        self.ending = False
        self.row_seconds = 1.0
        """Running mean of the seconds for which a text has a place."""
        self.metrics.waiting.set_function(lambda: len(self.queue))
        self.metrics.running.set_function(lambda: len(self.running))
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self._run, name="dapd-engine", daemon=True)

    def start(self) -> None:
        self.thread.start()

    @property
    def ready(self) -> bool:
        """Whether new requests are taken."""
        return self.thread.is_alive() and not self.draining

    @property
    def idle(self) -> bool:
        return not self.queue and not self.running

    def submit(self, jobs: Sequence[Job]) -> None:
        """Take in the texts of a request, all of them or none."""
        with self.changed:
            if not self.ready:
                raise ClosedError("the server is shutting down")
            waiting = len(self.queue) + len(self.running)
            if waiting + len(jobs) > self.limits.queue + self.limits.places:
                raise BusyError(self._retry_after())
            self.queue += jobs
            self.changed.notify()

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Give up jobs whose client went away; their rows leave before the next pass."""
        with self.changed:
            self.cancelled.update(jobs)
            self.changed.notify()

    def drain(self) -> None:
        """Take no more requests, and finish those that were accepted."""
        with self.changed:
            self.draining = True
            self.changed.notify()

    def stop(self) -> None:
        """End the thread; texts that are not finished fail."""
        with self.changed:
            self.draining = self.ending = True
            self.changed.notify()
        if self.thread.ident is not None:
            self.thread.join()

    def _decoder(self) -> Decoder:
        return Decoder(self.lm.network, self.lm.recordings, self.limits.places)

    def _retry_after(self) -> int:
        rounds = 1 + len(self.queue) / self.limits.places
        return min(60, max(1, math.ceil(rounds * self.row_seconds)))

    def _run(self) -> None:
        """The work of the thread. Whatever the reason for its end, every unfinished job is told that it failed."""
        try:
            while not self.ending:
                self._turn_over()
        except Exception:
            logger.exception("the engine ended because of an internal error")
        with self.changed:
            self.draining = True
            for job in [*self.queue, *self.running]:
                self._fail(job, "closed")
            self.decoder.close(keep=False)

    def _turn_over(self) -> None:
        """Wait for work, give up cancelled and late jobs, give free places to others, and run one pass."""
        with self.changed:
            while self.idle and not self.cancelled and not self.ending:
                self.changed.wait()
            self._let_go()
            begun = self._give_places()
        # Without the lock, for which other threads wait: to check a form may take a good part of a second.
        for job in begun:
            self._begin(job)
        if self.running and not self.ending:
            self._step()

    def _let_go(self) -> None:
        """Give up the jobs whose client is gone or whose time is up."""
        now = time.monotonic()
        for job in [*self.queue, *self.running]:
            if job in self.cancelled:
                self._fail(job, "gone")
            elif now > job.deadline:
                self._fail(job, "timeout")
        self.cancelled.clear()

    def _give_places(self) -> list[Job]:
        """Give free places to waiting jobs: short texts sooner than long ones, and not all places to long ones.

        Returns the jobs that got one.
        """
        begun = []
        reserved = self.limits.places // LONG_SHARE
        for job in sorted(self.queue, key=self._turn):
            n_long = sum(map(self._is_long, self.running))
            full = len(self.running) >= self.limits.places
            if full or (self._is_long(job) and n_long >= self.limits.places - reserved):
                continue
            self.running[job] = None  # before it leaves the queue: otherwise the engine would look idle for a moment
            self.queue.remove(job)
            begun.append(job)
        return begun

    def _turn(self, job: Job) -> float:
        return job.arrived + HEAD_START * job.work.canvas.length / self.lm.network.max_length

    def _is_long(self, job: Job) -> bool:
        longest = min(self.lm.network.max_length, self.limits.prompt_tokens + self.limits.new_tokens)
        return job.work.canvas.length * LONG_SHARE > longest

    def _begin(self, job: Job) -> None:
        work = job.work
        job.began = time.monotonic()
        self.metrics.wait_seconds.observe(job.began - job.arrived)
        try:
            self.decoder.admit(
                work.canvas, work.strategy, work.options, name=job, seed=work.seed, constraint=work.constraint
            )
            self.metrics.positions.inc(int(work.canvas.slots.sum()))
        except Exception:
            logger.exception("a text could not be admitted")
            self._fail(job, "fault")

    def _step(self) -> None:
        began = time.perf_counter()
        try:
            steps = self.decoder.step()
        except Exception:
            # The error of a single text would be in `failures`. After this one the state of the decoder is unknown.
            logger.exception("a step failed as a whole; all texts in it are given up")
            for job in [*self.running]:
                self._fail(job, "fault")
            self.decoder.close(keep=False)
            self.decoder = self._decoder()
            return
        self.metrics.step_seconds.observe(time.perf_counter() - began)
        self.metrics.rows.observe(len(steps))
        self.metrics.needed.inc(self.decoder.columns_needed)
        self.metrics.computed.inc(self.decoder.columns_computed)
        self.decoder.columns_needed = self.decoder.columns_computed = 0
        for step in steps:
            self._tell(step)
        for name, error in [*self.decoder.failures.items()]:
            logger.error("a text failed", exc_info=error)
            assert isinstance(name, Job)
            self._fail(name, "fault")
        self.decoder.failures.clear()

    def _tell(self, step: Step) -> None:
        job = step.row
        assert isinstance(job, Job)
        if job not in self.running:
            return
        self.metrics.steps.labels(type(job.work.strategy).__name__).inc()
        try:
            finished = job.add(step)
        except Exception:
            logger.exception("a pass could not be read")
            self._fail(job, "fault")
            return
        if finished is not None:
            # Told last, so that when a client has its answer, the place is free and the text is counted.
            self._leave(job)
            self._count(job, finished)
            job.tell(finished)

    def _leave(self, job: Job) -> None:
        self.decoder.cancel(job)
        self.running.pop(job, None)
        if job in self.queue:
            self.queue.remove(job)

    def _count(self, job: Job, finished: Finished) -> None:
        now = time.monotonic()
        assert job.began is not None
        self.row_seconds = 0.9 * self.row_seconds + 0.1 * (now - job.began)
        self.metrics.texts.labels("finished").inc()
        self.metrics.committed.inc(finished.n_tokens)
        self.metrics.per_pass.observe(finished.n_tokens / max(1, finished.passes))
        self.metrics.first_seconds.observe((job.first_text_at or now) - job.arrived)

    def _fail(self, job: Job, reason: Reason) -> None:
        self._leave(job)
        self.metrics.texts.labels(reason).inc()
        job.tell(Failed(job.index, reason))
