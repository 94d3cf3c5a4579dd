"""Passes recorded once and replayed: on a GPU the host then launches one graph instead of a thousand kernels.

A recording reads from buffers of its own, into which the state is copied; what it gives back is copied out. It holds
for one shape, plan, strategy and set of options. `Recorder` says how work is recorded, `Replays` keeps what was.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Protocol

import torch
from torch import Tensor

from dapd.errors import DapdError
from dapd.models.base import MaskedLM
from dapd.models.cache import KVCache
from dapd.options import Options, Reuse
from dapd.step import Outcome, Pass, Plan, State
from dapd.strategies.base import Selects
from dapd.tree import mapped, signature, tensors

MAX_KEPT = 32
"""Recordings kept per model; the one that was not used for longest goes first."""
MAX_FREE_CACHES = 2
"""Sets of keys and values that wait for the next decoding of their shape."""


class Recorder(Protocol):
    def record(self, work: Callable[[], Outcome]) -> Callable[[], Outcome]:
        """What repeats `work` on the tensors that it reads now, and answers with tensors that it writes again."""
        ...


class CudaGraphs:
    """CUDA graphs that share one pool of memory: they never run at the same time, and results are copied out."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        with torch.cuda.device(device):
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self.pool = torch.cuda.graph_pool_handle()

    def record(self, work: Callable[[], Outcome]) -> Callable[[], Outcome]:
        with torch.cuda.device(self.device), torch.no_grad():
            # Once outside of the graph: workspaces and compiled kernels must not be made while it is recorded.
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                work()
            torch.cuda.current_stream().wait_stream(self.stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
                made = work()

        def replay() -> Outcome:
            graph.replay()
            return made

        return replay


class Recording:
    """One recorded pass with its buffers."""

    def __init__(self, recorder: Recorder, state: State, work: Callable[[State], Outcome], cache: KVCache | None):
        buffers: State = mapped(torch.clone, state)
        self.buffers = tensors(buffers)
        self.copied = [weakref.ref(source) for source in tensors(state)]
        self.cache = cache
        self.replay = recorder.record(lambda: work(buffers))

    def __call__(self, state: State) -> Outcome:
        sources = tensors(state)
        for number, (buffer, source) in enumerate(zip(self.buffers, sources, strict=True)):
            if self.copied[number]() is not source:
                buffer.copy_(source)
                self.copied[number] = weakref.ref(source)
        # What a pass hands through unchanged is the caller's own again, and need not be copied in the next time.
        own = {id(buffer): source for buffer, source in zip(self.buffers, sources, strict=True)}

        def out(tensor: Tensor) -> Tensor:
            return own[id(tensor)] if id(tensor) in own else tensor.clone()

        outcome: Outcome = mapped(out, self.replay())
        return outcome


class Replays:
    """The recordings of one model, and the caches that they read and write."""

    def __init__(self, recorder: Recorder, limit: int = MAX_KEPT) -> None:
        self.recorder, self.limit = recorder, limit
        self.kept: OrderedDict[Hashable, Recording | None] = OrderedDict()
        self.refused: set[Hashable] = set()
        self.free: list[tuple[Hashable, KVCache]] = []
        self.lock = threading.RLock()

    def run(self, step: Pass, state: State, plan: Plan) -> Outcome:
        """The pass: as it is the first time, recorded the second time, replayed from then on."""
        key = (step.identity, repr(plan), signature(state))
        with self.lock:
            if key in self.refused or key not in self.kept:
                if key not in self.refused:
                    self._keep(key, None)
                return step(state, plan)
            recording = self.kept[key]
            if recording is None:
                recording = self._record(key, step, state, plan)
            if recording is None:
                return step(state, plan)
            self._keep(key, recording)
            return recording(state)

    def _record(self, key: Hashable, step: Pass, state: State, plan: Plan) -> Recording | None:
        try:
            return Recording(self.recorder, state, lambda buffers: step(buffers, plan), step.cache)
        except RuntimeError as error:
            name, why = type(step.strategy).__name__, str(error).splitlines()[0]
            del self.kept[key]
            self.refused.add(key)
            if step.options.graphs:
                raise DapdError(f"a step of strategy {name} cannot be recorded: {why}") from error
            warnings.warn(f"steps of strategy {name} run without CUDA graphs: {why}", stacklevel=2)
            return None

    def _keep(self, key: Hashable, recording: Recording | None) -> None:
        self.kept[key] = recording
        self.kept.move_to_end(key)
        while len(self.kept) > self.limit:
            self.kept.popitem(last=False)

    def borrow(self, shape: Hashable) -> KVCache:
        """A cache that no other decoding uses now; one that recordings of this shape know, if there is one."""
        with self.lock:
            for number, (known, cache) in enumerate(self.free):
                if known == shape:
                    del self.free[number]
                    return cache
        return KVCache()

    def give_back(self, shape: Hashable, cache: KVCache) -> None:
        with self.lock:
            self.free.append((shape, cache))
            while len(self.free) > MAX_FREE_CACHES:
                gone = self.free.pop(0)[1]
                for key in [key for key, kept in self.kept.items() if kept is not None and kept.cache is gone]:
                    del self.kept[key]


_REPLAYS: weakref.WeakKeyDictionary[MaskedLM, Replays] = weakref.WeakKeyDictionary()


def recorder_for(device: torch.device) -> Recorder | None:
    """How passes are recorded on this device; None: they are not."""
    return CudaGraphs(device) if device.type == "cuda" else None


def replays_for(model: MaskedLM, strategy: Selects, options: Options) -> Replays | None:
    """The recordings of the model, if these passes may be recorded at all; an error if that was asked for in vain."""
    if options.graphs is False:
        return None
    obstacle = _obstacle(model, strategy, options)
    known = None if obstacle else _REPLAYS.get(model)
    if obstacle is None and known is None:
        recorder = recorder_for(model.device)
        if recorder is None:
            obstacle = f"the device is {model.device}, not a CUDA device"
        else:
            known = _REPLAYS[model] = Replays(recorder)
    if obstacle is not None and options.graphs:
        raise DapdError(f"graphs is set, but {obstacle}; leave it out, or set it to none or false")
    return known


def _obstacle(model: MaskedLM, strategy: Selects, options: Options) -> str | None:
    if not getattr(model, "graphable", False):
        return f"the model {type(model).__name__} may read tensors on the host"
    if not getattr(strategy, "recordable", False):
        return f"strategy {type(strategy).__name__} does not declare itself recordable"
    if options.sampling.temperature > 0:
        return f"temperature is {options.sampling.temperature}; only steps at temperature 0 are recorded"
    if options.reuse is Reuse.SETTLED:
        return "reuse is settled, which computes another number of columns at each step"
    return None
