"""Passes recorded once and replayed: on a GPU the host then launches one graph instead of a thousand kernels.

A recording reads from buffers of its own and leaves in them the state for the next pass, so a pass that follows one of
its own kind has nothing to copy in; what it gives back is copied out in one piece, a strategy's memory in another. It
holds for one shape, plan, strategy and set of options. `Graphs` says how work is recorded, `Replays` keeps what was.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from dapd import kernels
from dapd.draws import Drawn
from dapd.errors import DapdError
from dapd.models.base import MaskedLM
from dapd.models.cache import KVCache
from dapd.options import Options
from dapd.step import Outcome, Pass, Plan, State
from dapd.strategies.base import Selects, declared
from dapd.tree import Packing, filled, mapped, signature, tensors

V = TypeVar("V")

MAX_KEPT = 128
"""Recordings kept per model; the one that was not used for longest goes first. A block may need three of them."""
MAX_KNOWN = 1024
"""Kinds of passes remembered per model: those that occurred once, and those that cannot be recorded."""
MAX_FREE_CACHES = 2
"""Sets of keys and values that wait for the next decoding of their shape."""


Made = tuple[Tensor, ...]
"""What recorded work answers with, and writes again each time."""


class Graphs(Protocol):
    def record(self, work: Callable[[], Made]) -> Callable[[], Made]:
        """What repeats `work` on the tensors that it reads now, and answers with the tensors that it writes again."""
        ...


class CudaGraphs:
    """CUDA graphs that share one pool of memory: they never run at the same time, and results are copied out."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        with torch.cuda.device(device):
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self.pool = torch.cuda.graph_pool_handle()

    def record(self, work: Callable[[], Made]) -> Callable[[], Made]:
        with torch.cuda.device(self.device), torch.no_grad():
            # Once outside of the graph: workspaces and compiled kernels must not be made while it is recorded.
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                work()
            torch.cuda.current_stream().wait_stream(self.stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
                made = work()

        def replay() -> Made:
            graph.replay()
            return made

        return replay


Work = Callable[[State, Tensor | None], Outcome]
"""A pass as a function of the state and the noise."""


class Recording:
    """One recorded pass with its buffers."""

    def __init__(self, recorder: Graphs, state: State, noise: Tensor | None, work: Work, cache: KVCache | None) -> None:
        self.buffers: State = mapped(torch.clone, state)
        self.inputs = tensors(self.buffers)
        self.noise = None if noise is None else noise.clone()
        self.cache = cache
        # To record is to run: what the buffers hold afterwards is nobody's state.
        self.holds: weakref.ref[State] | None = None
        self.inside: list[weakref.ref[Tensor]] = []
        self.replay = recorder.record(lambda: self._run(work))

    def _run(self, work: Work) -> Made:
        """What is recorded: the pass, its results packed, and the buffers moved on to the state it leaves."""
        outcome = work(self.buffers, self.noise)
        number_of = {id(buffer): number for number, buffer in enumerate(self.inputs)}
        # What a pass hands through unchanged is not copied: the number of its buffer; None for a result.
        self.through = [number_of.get(id(tensor)) for tensor in tensors(outcome)]
        packed = self._pack(outcome)
        # From here on with copies: a result may be a view of a buffer.
        values = self._values(packed, self.inputs)
        self.made: Outcome = filled(outcome, values)
        # A state of another form, or with buffers in each other's place, is copied in from outside.
        in_place = all(number in (None, place) for place, number in enumerate(self.through[: len(self.inputs)]))
        self.moves_on = in_place and signature(self.made.state) == signature(self.buffers)
        if self.moves_on:
            for buffer, value in zip(self.inputs, tensors(self.made.state), strict=True):
                if buffer is not value:
                    buffer.copy_(value)
        return packed

    def _pack(self, outcome: Outcome) -> Made:
        """The results in two pieces: the memory is one of its own, so that no step that somebody keeps holds it."""
        found, first = tensors(outcome), len(tensors(outcome.state.canvas))
        memory = range(first, first + len(tensors(outcome.state.memory)))
        results = [place for place, number in enumerate(self.through) if number is None]
        parts = [place for place in results if place not in memory], [place for place in results if place in memory]
        self.pieces = [(part, Packing([found[place] for place in part])) for part in parts if part]
        return tuple(packing.pack([found[place] for place in part]) for part, packing in self.pieces)

    def _values(self, packed: Made, sources: Sequence[Tensor]) -> list[Tensor]:
        """The tensors of an outcome; those handed through are the caller's own again."""
        results: dict[int, Tensor] = {}
        for (part, packing), piece in zip(self.pieces, packed, strict=True):
            results.update(zip(part, packing.unpack(piece), strict=True))
        return [results[place] if number is None else sources[number] for place, number in enumerate(self.through)]

    def __call__(self, state: State, noise: Tensor | None) -> Outcome:
        """The pass on a state. If the last one left that state here, the launch is all that the device waits for."""
        known = [ref() for ref in self.inside]
        sources = [tensor for tensor in known if tensor is not None]
        if self.holds is None or self.holds() is not state:
            sources = tensors(state)
            self._copy_in(sources, known)
        if self.noise is not None and noise is not None:
            self.noise.copy_(noise)
        # Until the pass is through, nobody may rely on what the buffers hold.
        self.holds, self.inside = None, []
        values = self._values(tuple(piece.clone() for piece in self.replay()), sources)
        outcome: Outcome = filled(self.made, values)
        left = (outcome.state, values[: len(sources)]) if self.moves_on else (state, sources)
        self.holds, self.inside = weakref.ref(left[0]), [weakref.ref(tensor) for tensor in left[1]]
        return outcome

    def _copy_in(self, sources: list[Tensor], known: Sequence[Tensor | None]) -> None:
        """Put a state's tensors into the buffers, except for those that are in them already."""
        for buffer, source, inside in zip(self.inputs, sources, known or [None] * len(sources), strict=True):
            if source is not inside:
                buffer.copy_(source)


@dataclass(frozen=True)
class Latest:
    """The recording that ran last, and for what: the next pass is most often of the same kind."""

    step: weakref.ref[Pass]
    plan: Plan
    mode: Hashable
    recording: Recording

    def serves(self, step: Pass, state: State, plan: Plan, mode: Hashable) -> bool:
        """Whether the pass is the next one of the same decoding and kind; then nothing has to be looked up."""
        holds = self.recording.holds
        same = self.step() is step and self.plan is plan and self.mode == mode
        return same and holds is not None and holds() is state


@dataclass(frozen=True)
class Known:
    """A kind of pass that occurred before."""

    refused: bool = False
    """It cannot be recorded."""
    short: weakref.ref[Pass] | None = None
    """The decoding in which the memory did not suffice to record it."""

    def refuses(self, step: Pass) -> bool:
        return self.refused or (self.short is not None and self.short() is step)


def _put(store: OrderedDict[Hashable, V], key: Hashable, value: V, limit: int) -> None:
    """Make it the latest one; beyond the limit the oldest goes."""
    store[key] = value
    store.move_to_end(key)
    while len(store) > limit:
        store.popitem(last=False)


class Replays:
    """The recordings of one model, and the caches that they read and write."""

    def __init__(self, recorder: Graphs, device: torch.device, limit: int = MAX_KEPT) -> None:
        self.device = device
        self.recorder, self.limit = recorder, limit
        self.kept: OrderedDict[Hashable, Recording] = OrderedDict()
        self.known: OrderedDict[Hashable, Known] = OrderedDict()
        self.latest: Latest | None = None
        self.free: list[tuple[Hashable, KVCache]] = []
        self.lock = threading.RLock()

    def run(self, step: Pass, state: State, plan: Plan, noise: Tensor | None = None) -> Outcome:
        """The pass: as it is the first time, recorded the second time, replayed from then on."""
        with self.lock:
            mode = kernels.mode(self.device)
            if self.latest is not None and self.latest.serves(step, state, plan, mode):
                return self.latest.recording(state, noise)
            key = (step.identity, repr(plan), signature(state), mode)
            recording = self._find(key, step, state, plan, noise)
            if recording is None:
                return step(state, plan, lambda _: Drawn(None, noise))
            self.latest = Latest(weakref.ref(step), plan, mode, recording)
            return recording(state, noise)

    def _find(self, key: Hashable, step: Pass, state: State, plan: Plan, noise: Tensor | None) -> Recording | None:
        """The recording of such passes; None: there is none, or not yet."""
        recording, known = self.kept.get(key), self.known.get(key)
        if recording is None and known is None:
            _put(self.known, key, Known(), MAX_KNOWN)
        elif recording is None and known is not None and not known.refuses(step):
            recording = self._record(key, step, state, plan, noise)
        if recording is not None:
            _put(self.kept, key, recording, self.limit)
        return recording

    def _record(self, key: Hashable, step: Pass, state: State, plan: Plan, noise: Tensor | None) -> Recording | None:
        def work(buffers: State, drawn: Tensor | None) -> Outcome:
            return step(buffers, plan, lambda _: Drawn(None, drawn))

        try:
            return Recording(self.recorder, state, noise, work, step.cache)
        except RuntimeError as error:
            name, why = type(step.strategy).__name__, (str(error).splitlines() or [type(error).__name__])[0]
            # Without memory now is not without memory for good: the next decoding tries again.
            short = "out of memory" in str(error)
            _put(self.known, key, Known(refused=not short, short=weakref.ref(step) if short else None), MAX_KNOWN)
            if step.options.graphs:
                raise DapdError(f"a step of strategy {name} cannot be recorded: {why}") from error
            warnings.warn(f"steps of strategy {name} run without CUDA graphs: {why}", stacklevel=2)
            return None

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
                gone, self.latest = self.free.pop(0)[1], None
                for key in [key for key, kept in self.kept.items() if kept.cache is gone]:
                    del self.kept[key]
                    self.known.pop(key, None)  # another cache may get its address


_REPLAYS: weakref.WeakKeyDictionary[MaskedLM, Replays] = weakref.WeakKeyDictionary()


def recorder_for(device: torch.device) -> Graphs | None:
    """How passes are recorded on this device; None: they are not."""
    return CudaGraphs(device) if device.type == "cuda" else None


def replays_for(model: MaskedLM, strategy: Selects, options: Options) -> Replays | None:
    """The recordings of the model, if these passes may be recorded at all; an error if that was asked for in vain."""
    if options.graphs is False:
        return None
    obstacle = _obstacle(model, strategy, options)
    known = None if obstacle else _REPLAYS.get(model)
    if known is not None and known.device != model.device:
        del _REPLAYS[model]  # the model was moved
        known = None
    if obstacle is None and known is None:
        recorder = recorder_for(model.device)
        if recorder is None:
            obstacle = f"the device is {model.device}, not a CUDA device"
        else:
            known = _REPLAYS[model] = Replays(recorder, model.device)
    if obstacle is not None and options.graphs:
        raise DapdError(f"graphs is set, but {obstacle}; leave it out, or set it to none or false")
    return known


def _hashable(part: object) -> bool:
    try:
        hash(part)
    except TypeError:
        return False
    return True


def _obstacle(model: MaskedLM, strategy: Selects, options: Options) -> str | None:
    if not getattr(model, "graphable", False):
        return f"the model {type(model).__name__} may read tensors on the host"
    if not declared(strategy, "recordable", False):
        return f"strategy {type(strategy).__name__} does not declare itself recordable"
    for what, part in (("strategy", strategy), ("model", model)):
        if not _hashable(part):
            return f"the {what} {type(part).__name__} has no hash, by which its recordings would be found again"
    if options.sampling.temperature > 0:
        return f"temperature is {options.sampling.temperature}; only steps at temperature 0 are recorded"
    return None
