"""Passes recorded once as CUDA graphs and replayed: the host then launches one graph instead of a thousand kernels.

A recording holds for one set of rules (`PassPlan.rules`), of shapes and of weights. It reads from buffers of its own:
inputs are copied in, in one transfer, and outcomes are copied out, in another.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from dapd import kernels
from dapd.decoding.exchange import GroupState, Inputs, Results
from dapd.decoding.plan import PassPlan
from dapd.decoding.row import Row, has_hash
from dapd.decoding.step import Outcome
from dapd.decoding.tree import mapped, packed, signature, tensors, unpacked
from dapd.errors import DapdError
from dapd.kernels.cuda_graph import capture
from dapd.models.base import MaskedLM
from dapd.models.cache import KVPool

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
Key = tuple[Hashable, ...]
"""What a recording holds for; the last part is the identity of the pool that it uses, or None."""

BUCKET = 32
"""Where passes are recorded, lengths and widths are rounded up to a multiple of this, so that few recordings serve."""
MAX_RECORDINGS = 128
"""Recordings kept; the one that was not used for longest goes first."""
MAX_KINDS = 1024
"""Kinds of passes that are counted (those that occurred once, and those that cannot be recorded), and rules of passes
that were recorded."""
MAX_FREE_POOLS = 2
"""Pools of keys and values that are kept for the next decoding of their size."""
PATIENCE = 64
"""Passes after which a recording that lacked memory is tried again."""

HOST = torch.device("cpu")


@dataclass
class Pass:
    """A pass whose turn has come, with everything that it reads."""

    plan: PassPlan
    pool: KVPool | None
    """The keys and values that its rows keep; None: they keep none."""
    run: Callable[[Inputs, Sequence[GroupState]], Results]
    """Computes it from inputs and states on the device."""
    inputs: Inputs
    states: list[GroupState]
    """Those of its groups; none any more once it is replayed."""
    began: float
    """When its turn came; if it is replayed for the next turns, the first of them."""
    flight: Flight | None = None
    """Its replay, which may already be running on the device; None: it has no recording, and is computed when its
    results are asked for."""


class CudaGraphs:
    """Records work as CUDA graphs that share one pool of memory: they never run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._start()

    def _start(self) -> None:
        with torch.cuda.device(self.device):
            self.stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            self.pool = torch.cuda.graph_pool_handle()

    def record(self, work: Callable[[], T], *, try_first: bool = True) -> Callable[[], T]:
        """What repeats `work` on the tensors that it reads now; its results are the same tensors, written again.

        `try_first`: run it once beforehand and refuse what cannot be recorded.
        """
        with torch.cuda.device(self.device), torch.no_grad():
            try:
                return capture(work, stream=self.stream, pool=self.pool, warmups=int(try_first), refuse_waiting=True)
            except Exception:
                # A capture that fails half-way leaves its stream and its memory unusable for another one.
                self._start()
                raise


class Recording:
    """One recorded pass and the buffers that it reads."""

    def __init__(self, recorder: CudaGraphs, pass_: Pass, *, try_first: bool) -> None:
        self.pool = pass_.pool
        self.mode = kernels.mode(recorder.device)
        self.packed = packed(pass_.inputs).to(recorder.device, copy=True)
        self.states: list[GroupState] = mapped(torch.clone, pass_.states)
        inputs: Inputs = unpacked(self.packed, pass_.inputs)

        def work() -> tuple[Tensor, list[Outcome], list[object]]:
            outcomes, memories = pass_.run(inputs, self.states)
            return packed(outcomes), outcomes, memories

        self.replay = recorder.record(work, try_first=try_first)


class Flight:
    """A recorded pass on its way: launched, and not yet waited for.

    Its results are copied out right after it, so that another recording may run before they are waited for.
    """

    def __init__(self, recording: Recording, pass_: Pass, lock: AbstractContextManager[object]) -> None:
        self.recording = recording
        self.lock = lock
        self.packed = packed(pass_.inputs)
        if recording.packed.is_cuda:
            self.packed = self.packed.pin_memory()
        self.inputs: Inputs = unpacked(self.packed, pass_.inputs)
        self._launch(tensors(pass_.states))

    def _launch(self, values: Sequence[Tensor]) -> None:
        with self.lock:
            self.recording.packed.copy_(self.packed, non_blocking=True)
            for buffer, value in zip(tensors(self.recording.states), values, strict=True):
                buffer.copy_(value)
            results, outcomes, memories = self.recording.replay()
            self.memories: list[object] = mapped(torch.clone, memories)
            copy = torch.empty_like(results, device=HOST, pin_memory=results.is_cuda)
            copy.copy_(results, non_blocking=True)
            self.landed = torch.cuda.Event() if results.is_cuda else None  # type: ignore[no-untyped-call]
            if self.landed is not None:
                self.landed.record()
            self.outcomes: list[Outcome] = unpacked(copy, outcomes)

    def wait(self) -> Results:
        """The outcomes, on the host, and the memories."""
        if self.landed is not None:
            self.landed.synchronize()
        return self.outcomes, self.memories

    def may_repeat(self) -> bool:
        """Whether the recording fits the form of the strategies' memories now, and torch's present settings."""
        before = signature([state.memory for state in self.recording.states])
        return before == signature(self.memories) and self.recording.mode == kernels.mode(self.recording.packed.device)

    def again(self, plan: PassPlan, outcomes: Sequence[Outcome]) -> None:
        """Launch the pass that follows these outcomes of the planned pass, which has the same form."""
        self.inputs.advance(plan, outcomes)
        self._launch(tensors(self.memories))


class Recordings:
    """The recordings that a caller keeps for a model, and the pools of keys and values that they read and write.

    Several decodings may share them, in several threads too: one pass runs at a time.
    """

    def __init__(self, recorder: CudaGraphs) -> None:
        self.recorder = recorder
        self.kept: OrderedDict[Key, Recording] = OrderedDict()
        self.occurrences: OrderedDict[Key, float] = OrderedDict()
        """How often a kind of pass ran without a recording. Below 0: that many more such passes until recording it
        is tried again; without end where it cannot be recorded."""
        self.proven: OrderedDict[Hashable, None] = OrderedDict()
        """Rules with which a pass was recorded before, whatever its shapes: no trial run is needed."""
        self.free: list[KVPool] = []
        self.lock = threading.RLock()

    @classmethod
    def on(cls, device: torch.device) -> Recordings | None:
        """A place for recordings, if passes can be recorded on this device."""
        return cls(CudaGraphs(device)) if device.type == "cuda" else None

    @property
    def device(self) -> torch.device:
        return self.recorder.device

    def launch(self, weights: Hashable, pass_: Pass) -> Flight | None:
        """Replay a pass that is recorded, or record it if such a pass has run before; None: it must run unrecorded.

        `weights` tells models apart; the rules and shapes of a pass do not.
        """
        with self.lock:
            shapes = signature([pass_.inputs, pass_.states])
            pool = None if pass_.pool is None else id(pass_.pool)
            key = (weights, pass_.plan.rules, shapes, kernels.mode(self.device), pool)
            if key not in self.kept and self._occurred(key):
                self._record(key, pass_)
            if key not in self.kept:
                return None
            self.kept.move_to_end(key)
            return Flight(self.kept[key], pass_, self.lock)

    def _occurred(self, key: Key) -> bool:
        """Count one more pass of a kind, and say whether it is time to record it."""
        times = self.occurrences.get(key, 0)
        _put(self.occurrences, key, times + 1, MAX_KINDS)
        return times > 0

    def _record(self, key: Key, pass_: Pass) -> None:
        plan = pass_.plan
        try:
            recording = Recording(self.recorder, pass_, try_first=plan.rules not in self.proven)
            _put(self.kept, key, recording, MAX_RECORDINGS)
            _put(self.proven, plan.rules, None, MAX_KINDS)
        except RuntimeError as error:
            names = ", ".join(dict.fromkeys(type(row.strategy).__name__ for row in plan.rows))
            why = (str(error).splitlines() or [type(error).__name__])[0]
            # Too little memory now may be enough later: try again after a while.
            self.occurrences[key] = -PATIENCE if "out of memory" in str(error) else -math.inf
            if any(row.options.graphs for row in plan.rows):
                raise DapdError(f"a pass of strategy {names} cannot be recorded: {why}") from error
            warnings.warn(f"passes of strategy {names} run without CUDA graphs: {why}", stacklevel=2)

    def borrow(self, rows: int, length: int) -> KVPool:
        """Memory for keys and values that no other decoding uses now, preferably a pool that has recordings."""
        with self.lock:
            for number, pool in enumerate(self.free):
                if (pool.rows, pool.length) == (rows, length):
                    return self.free.pop(number)
        return KVPool(rows, length)

    def give_back(self, pool: KVPool) -> None:
        """Keep a pool for later; if there are too many, the oldest goes."""
        with self.lock:
            self.free.append(pool)
            while len(self.free) > MAX_FREE_POOLS:
                self.forget(self.free.pop(0))

    def forget(self, pool: KVPool) -> None:
        """Drop a pool's recordings: they would hold its memory, and a later pool may get the same identity."""
        with self.lock:
            for store in (self.kept, self.occurrences):
                for key in [key for key in store if key[-1] == id(pool)]:
                    del store[key]


def _put(store: OrderedDict[K, V], key: K, value: V, limit: int) -> None:
    """Make it the latest one; beyond the limit the oldest goes."""
    store[key] = value
    store.move_to_end(key)
    while len(store) > limit:
        store.popitem(last=False)


def weights_of(model: MaskedLM) -> Hashable:
    """Address and dtype of every weight. Part of a recording's key: a CUDA graph reads fixed addresses."""
    weights = (*getattr(model, "parameters", tuple)(), *getattr(model, "buffers", tuple)())
    return tuple((weight.data_ptr(), weight.dtype) for weight in weights)


def obstacle(model: MaskedLM, row: Row, recordings: Recordings | None) -> str | None:
    """Why the passes of a row cannot be recorded; None: they can."""
    if not model.graphable:
        return f"the passes of the model {type(model).__name__} cannot be recorded"
    if not row.needs.recordable:
        return f"strategy {type(row.strategy).__name__} does not say that it is recordable"
    if not has_hash(row.strategy):
        return f"strategy {type(row.strategy).__name__} has no hash, by which its recordings would be found again"
    if row.options.sampling.temperature > 0:
        return f"temperature is {row.options.sampling.temperature}; only passes at temperature 0 are recorded"
    if row.constraint is not None:
        return "the text is constrained, which is worked out on the host"
    if recordings is None:
        return f"the device is {model.device}, not a CUDA device"
    return None
