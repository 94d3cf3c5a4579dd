"""Workers as processes of this machine: one that dies is started again, and its asks are done again."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Any

import torch

from dapd.errors import DapdError, first_line
from dapd.generation import DiffusionLM
from dapd.io import own
from dapd.scale.recipe import Recipe
from dapd.scale.work import Ask, Call, Failure, Outcome

STRIKES = 3
"""Workers that may die on a text before it is given up."""
STARTS = 3
"""Workers that may die one after the other before they are ready."""
AHEAD = 2
"""Asks that a worker has at hand, for each of its places, so that a free place never waits for the next text."""


Sent = Ask | Call | bytes
"""A message to a worker; bytes are an ask that was packed elsewhere."""


class Processes:
    """Processes that decode, each with a model of its own."""

    def __init__(self, recipe: Recipe, n: int, tell: Callable[[str], None] = lambda text: None) -> None:
        self.recipe = recipe
        self.tell = tell
        self.early_deaths = 0
        """Workers that died before they were ready, since the last one that was."""
        self.members = [_Member.start(replace(recipe, device=device)) for device in devices(recipe.device, n)]

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.end()

    def outcomes(self, asks: Sequence[Sent]) -> Iterator[Outcome]:
        """One outcome for every ask. Those that a dead worker had at hand are done again, each alone in a worker, so
        that the one that killed it harms no others; it is given up when it has killed STRIKES workers."""
        fresh = deque(range(len(asks)))
        suspects = deque[int]()
        strikes: Counter[int] = Counter()
        unfinished = len(asks)
        while unfinished:
            for member in self.members:
                self._hand_out(member, asks, fresh, suspects)
            for member in self._heard():
                for number in self._lost(member):
                    strikes[number] += 1
                    if strikes[number] < STRIKES:
                        suspects.append(number)
                        continue
                    unfinished -= 1
                    yield number, Failure(f"{STRIKES} workers died on this text, one after the other")
                while member.inbox:
                    unfinished -= 1
                    yield member.inbox.popleft()

    def _hand_out(self, member: _Member, asks: Sequence[Sent], fresh: deque[int], suspects: deque[int]) -> None:
        if fresh:
            while fresh and len(member.at_hand) < AHEAD * self.recipe.places:
                member.send(number := fresh.popleft(), asks[number])
        elif suspects and not member.at_hand:
            member.send(number := suspects.popleft(), asks[number])

    def _heard(self) -> list[_Member]:
        """The workers that sent something or died; waits until there is one."""
        by_line = {member.line: member for member in self.members}
        heard = [by_line[line] for line in wait(list(by_line)) if isinstance(line, Connection)]
        for member in heard:
            member.listen()
            if member.refusal is not None:
                raise DapdError(member.refusal)
        return heard

    def _lost(self, member: _Member) -> list[int]:
        """The asks that a worker had at hand when it died, if it did; another one is started in its place."""
        if not member.dead:
            self.early_deaths = 0 if member.ready else self.early_deaths
            return []
        lost = sorted(member.at_hand)
        code = member.end()
        if not member.ready:
            self.early_deaths += 1
            if self.early_deaths == STARTS:
                raise DapdError(
                    f"{STARTS} workers ended before they were ready, the last with exit code {code}; is there enough "
                    "memory for a model in each of them?"
                )
        self.tell(f"a worker died (exit code {code}); its texts are done again")
        self.members[self.members.index(member)] = _Member.start(member.recipe)
        return lost


def devices(asked: str | None, n: int) -> list[str]:
    """The device of each of `n` workers: GPUs in turn, where there are any and no other device was named."""
    count = torch.cuda.device_count()
    if asked in (None, "auto", "cuda") and count:
        return [f"cuda:{number % count}" for number in range(n)]
    return [asked or "cpu"] * n


@dataclass(eq=False)
class _Member:
    """A worker's process as its leader sees it."""

    recipe: Recipe
    process: subprocess.Popen[bytes]
    line: Connection

    def __post_init__(self) -> None:
        self.at_hand: set[int] = set()
        """The asks that it was sent and that have no outcome yet."""
        self.inbox: deque[Outcome] = deque()
        self.ready = self.dead = False
        self.refusal: str | None = None
        """Why it cannot work at all; None: it can, as far as is known."""

    @classmethod
    def start(cls, recipe: Recipe) -> _Member:
        mine, theirs = socket.socketpair()
        with theirs:
            code = f"import gc; gc.disable(); from {__name__} import main; main({theirs.fileno()})"
            paths = dict.fromkeys(map(os.path.abspath, [*recipe.paths, *sys.path]))
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
            if recipe.device == "cpu":
                environment["OMP_NUM_THREADS"] = "1"
            # Without -P it would import modules from the folder that it starts in (a random.py); the leader does not.
            command = [sys.executable, "-P", "-c", code]
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
        member = cls(recipe, process, Connection(mine.detach()))
        member._post(recipe)
        return member

    def send(self, number: int, ask: Sent) -> None:
        self.at_hand.add(number)
        self._post((number, packed(ask)))

    def _post(self, message: Any) -> None:
        # A dead process cannot be written to; `listen` finds out that it is dead.
        with contextlib.suppress(OSError):
            self.line.send_bytes(pickle.dumps(message))

    def listen(self) -> None:
        """Take in the messages that have arrived."""
        try:
            while self.line.poll():
                self._take(pickle.loads(self.line.recv_bytes()))
        except (EOFError, OSError):
            self.dead = True

    def _take(self, message: Any) -> None:
        if isinstance(message, _Refusal):
            self.refusal = message.reason
        elif message is READY:
            self.ready = True
        else:
            self.at_hand.discard(message[0])
            self.inbox.append(message)

    def end(self) -> int:
        """Kill the process; returns its exit code."""
        self.line.close()
        self.process.kill()
        return self.process.wait()


READY = None
"""The message of a worker that has its model."""


@dataclass(frozen=True)
class _Refusal:
    """The message of a worker that cannot work at all, so that starting another one would not help."""

    reason: str


def main(descriptor: int) -> None:
    """The worker's process: a recipe comes first, then asks, for as long as the leader lives."""
    # Garbage collection was off while modules were imported: they stay, and there is no garbage in them.
    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the leader ends its workers
    line = Connection(descriptor)
    recipe: Recipe = pickle.loads(line.recv_bytes())
    own.read_again(recipe.own_files, recipe.own_sources)
    inbox: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_receive, args=(line, inbox), daemon=True).start()
    if recipe.device == "cpu":
        torch.set_num_threads(1)
    try:
        worker = recipe.worker()
    except Exception as error:
        said = first_line(error)
        line.send_bytes(pickle.dumps(_Refusal(said if isinstance(error, DapdError) else f"a worker failed: {said}")))
        return
    line.send_bytes(pickle.dumps(READY))
    while True:
        outcomes: list[Outcome] = []
        while not inbox.empty() or not (worker.busy or outcomes):
            outcomes += worker.admit(*_unpacked(inbox.get()))
        for outcome in [*outcomes, *worker.step()]:
            line.send_bytes(pickle.dumps(outcome))


def packed(ask: Sent) -> bytes:
    """An ask as bytes, unless it is packed already: a process that only passes it on need not be able to read it."""
    try:
        return ask if isinstance(ask, bytes) else pickle.dumps(ask)
    except Exception as error:  # pickle has no common base class for its failures
        raise DapdError(f"this cannot be sent to a worker: {first_line(error)}; define it in a module") from None


def _unpacked(message: bytes) -> tuple[int, Ask | Call]:
    """An ask with its number; where this process cannot read it, a call that raises the reason."""
    number, ask = pickle.loads(message)
    try:
        return number, pickle.loads(ask)
    except Exception as error:
        return number, Call(_raise, f"a worker cannot read what was sent: {first_line(error)}")


def _raise(lm: DiffusionLM, reason: str) -> None:
    raise DapdError(reason)


def _receive(line: Connection, inbox: SimpleQueue[bytes]) -> None:
    """Read the line all the time: two processes that write to each other and do not read would wait forever. When the
    leader is gone, there is no more work, and the process ends."""
    try:
        while True:
            inbox.put(line.recv_bytes())
    except (EOFError, OSError):
        os._exit(0)
