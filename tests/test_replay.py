"""Recorded passes: the same trajectories as without, for every decoder; buffers, keys, and how many are kept."""

import gc
import weakref
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from dapd import PRESETS, DapdError, Options, Sampling, Selection, Strategy, decode, engine, kernels, replay, tree
from dapd.step import Needs
from dapd.strategies import Dawn, DreamSchedule, Klass, Threshold, TopK
from dapd.strategies.base import declared
from reference.models import PROMPTS, build
from reference.ours import blank, run
from reference.scripted import Scripted, rising


class Rerun:
    """A recorder for the CPU: repeats the work on the same buffers and writes the result over the first one."""

    def __init__(self):
        self.recorded = self.replayed = 0
        self.refuse = None

    def record(self, work):
        if self.refuse:
            raise self.refuse
        self.recorded += 1
        made = work()

        def again():
            self.replayed += 1
            for old, new in zip(made, work(), strict=True):
                old.copy_(new)
            return made

        return again


@pytest.fixture
def recorder(monkeypatch):
    found = Rerun()
    monkeypatch.setattr(replay, "recorder_for", lambda device: found)
    monkeypatch.setattr(replay, "_REPLAYS", weakref.WeakKeyDictionary())
    return found


DECODERS = {
    **PRESETS,
    "dawn": Dawn(edge=0.2, sink=0.3, layers=1.0),
    "quota": TopK(steps=4),
    "random order": TopK(k=2, order="random"),
    "dream, drawn positions": DreamSchedule(steps=4, alg_temp=0.5),
    "budget": Threshold(0.8, budget=2),
    "klass, soft": Klass(0.4, 1.0, steps=4),
}
LOOPS = {
    "one block": Options(),
    "blocks": Options(block_length=4, record_edges=True),
    "blocks, prefix": Options(block_length=4, reuse="prefix"),
    "blocks, dual": Options(block_length=4, reuse="dual"),
    "settled": Options(reuse="settled", refresh=4),
    "prompt, refreshed": Options(reuse="prefix", refresh=3, sampling=Sampling(eos="ban")),
    "early stop": Options(early_stop=True, sampling=Sampling(eos="defer", top_p=0.9)),
}


def steps_of(model, canvas, strategy, options):
    """Everything a step holds, as plain values."""
    return [
        (s.index, s.window, *(None if t is None else t.tolist() for t in (s.active, s.commit, s.token, s.confidence)),
         None if s.tail is None else s.tail.tolist(), None if s.edges is None else s.edges.tolist(),
         s.canvas.tokens.tolist())
        for s in decode(model, canvas, strategy, options)
    ]  # fmt: skip


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("loop", list(LOOPS))
def test_replayed_and_eager_decoding_are_the_same(recorder, family, loop):
    model, options = build(family, 1, dtype=torch.float32, sharpness=5.0), LOOPS[loop]
    for name, strategy in DECODERS.items():
        if strategy.sees == "canvas" and options.reuse != "none":
            continue
        recorder.replayed = 0
        for prompts in (PROMPTS, [row[::-1] for row in PROMPTS]):
            canvas = blank(model, prompts, 8)
            eager = steps_of(model, canvas, strategy, replace(options, graphs=False))
            assert steps_of(model, canvas, strategy, replace(options, graphs=True)) == eager, name
        assert recorder.replayed > 0, name


def test_a_second_generation_records_nothing_new(recorder):
    model = build("llada", 1, dtype=torch.float32)
    for number, prompt in enumerate(([1, 2, 3], [4, 5, 6], [7, 8, 9])):
        list(decode(model, blank(model, [prompt], 8), TopK(), Options(seed=number)))
        assert recorder.recorded == 1
    assert recorder.replayed == 3 * 8 - 1
    list(decode(model, blank(model, [[1, 2]], 8), TopK()))
    list(decode(model, blank(model, [[1, 2, 3]], 8), TopK(k=2)))
    assert recorder.recorded == 3, "another length and another strategy are other recordings"


def test_steps_keep_their_tensors(recorder):
    """A recording writes over its own; what a step holds is a copy."""
    model = build("llada", 1, dtype=torch.float32)
    steps = list(decode(model, blank(model, PROMPTS, 8), TopK()))
    assert [int(step.canvas.masked[0].sum()) for step in steps] == [7, 6, 5, 4, 3, 2, 1, 0]
    assert all(int(step.commit[0].sum()) == 1 for step in steps)
    assert len({id(step.canvas.valid) for step in steps}) == 1, "what does not change is handed through"


@pytest.mark.parametrize("reuse", ["none", "dual"])
def test_two_decodings_at_once_do_not_meet(recorder, reuse):
    model, options = build("llada", 1, dtype=torch.float32), Options(block_length=4, reuse=reuse)
    canvases = [blank(model, [[1, 2, 3]], 8), blank(model, [[9, 8, 7]], 8)]
    alone = [run(model, canvas, Klass(0.4, 1.0), replace(options, graphs=False))[0].tokens for canvas in canvases]
    for _ in range(3):
        ends = [decode(model, canvas, Klass(0.4, 1.0), options) for canvas in canvases]
        last = [None, None]
        while any(ends):
            for number, steps in enumerate(ends):
                step = next(steps, None) if steps is not None else None
                ends[number] = steps if step is not None else None
                last[number] = step or last[number]
        assert [step.canvas.tokens[0].tolist() for step in last] == alone


def test_only_so_many_are_kept(recorder, monkeypatch):
    monkeypatch.setattr(replay, "MAX_KEPT", 3)
    model = build("llada", 1, dtype=torch.float32)
    store = replay.replays_for(model, TopK(), Options())
    store.limit = 3
    for k in range(1, 7):
        list(decode(model, blank(model, [[1, 2, 3]], 8), TopK(k=k)))
        assert len(store.kept) <= 3
    for length in range(3, 9):
        list(decode(model, blank(model, [[1] * length], 8), TopK(), Options(reuse="prefix")))
    assert len(store.free) <= replay.MAX_FREE_CACHES


def test_a_model_that_is_gone_takes_its_recordings_along(recorder):
    from dapd import random
    from reference.models import shape

    model = random(shape("llada"), seed=0)
    list(decode(model, blank(model, [[1, 2, 3]], 2), TopK(k=2)))
    assert len(replay._REPLAYS) == 1
    del model
    gc.collect()
    assert len(replay._REPLAYS) == 0


def test_weights_elsewhere_are_recorded_anew(recorder):
    from dapd import random
    from reference.models import shape

    model = random(shape("llada"), seed=0)
    list(decode(model, blank(model, [[1, 2, 3]], 4), TopK()))
    kept = model.embed.weight.data
    model.embed.weight.data = kept.clone()
    list(decode(model, blank(model, [[1, 2, 3]], 4), TopK()))
    assert recorder.recorded == 2
    model.layers[1].down_proj.weight.data = model.layers[1].down_proj.weight.data.clone()
    list(decode(model, blank(model, [[1, 2, 3]], 4), TopK()))
    assert recorder.recorded == 3


def test_what_cannot_be_recorded_runs_as_it_is(recorder):
    model = build("llada", 1, dtype=torch.float32)
    recorder.refuse = RuntimeError("cudaErrorStreamCaptureUnsupported\nand more")
    eager = steps_of(model, blank(model, PROMPTS, 8), TopK(), Options(graphs=False))
    with pytest.warns(UserWarning, match="TopK run without CUDA graphs: cudaErrorStreamCaptureUnsupported"):
        assert steps_of(model, blank(model, PROMPTS, 8), TopK(), Options()) == eager
    with pytest.raises(DapdError, match="Threshold cannot be recorded"):
        list(decode(model, blank(model, PROMPTS, 8), Threshold(0.99), Options(graphs=True)))


def test_a_pass_after_one_of_its_own_kind_copies_nothing_in(recorder, monkeypatch):
    copied = []
    real = replay.Recording._copy_in
    monkeypatch.setattr(replay.Recording, "_copy_in", lambda self, *args: (copied.append(self), real(self, *args)))
    model = build("llada", 1, dtype=torch.float32)
    list(decode(model, blank(model, PROMPTS, 8), TopK()))
    assert (recorder.replayed, len(copied)) == (7, 1)
    list(decode(model, blank(model, PROMPTS, 8), TopK(), Options(block_length=4, reuse="prefix", refresh=3)))
    assert recorder.replayed > len(copied) - 1 > 1, "another kind has to be told where the other one is"


class Noting(TorchDispatchMode):
    """Notes the operations between a transfer and the next launch, during which a device would have nothing to do."""

    def __init__(self):
        super().__init__()
        self.waiting, self.noted = False, []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if self.waiting:
            self.noted.append(str(operation))
        return operation(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["original", "dapd-staged", "klass", "eb-sampler"])
def test_nothing_is_asked_of_the_device_between_transfer_and_launch(recorder, monkeypatch, name):
    noting, check, record = Noting(), engine._Run.check, recorder.record

    def checked(self, *args):
        check(self, *args)
        noting.waiting = True

    def recorded(work):
        again = record(work)

        def launch():
            noting.waiting = False
            return again()

        return launch

    monkeypatch.setattr(engine._Run, "check", checked)
    monkeypatch.setattr(recorder, "record", recorded)
    model = build("llada", 1, dtype=torch.float32)
    strategy = replace(PRESETS[name], steps=None) if hasattr(PRESETS[name], "steps") else PRESETS[name]
    steps = decode(model, blank(model, PROMPTS, 48), strategy, Options(graphs=True))
    for _ in range(5):  # as they are, recorded, replayed; where there is a memory, the first one is another kind
        next(steps)
    with noting:
        next(steps)
    assert noting.noted == []


@dataclass(frozen=True)
class Remembers(Strategy):
    """Its memory is a view of the canvas that it saw, which a recording moves on in place."""

    recordable: ClassVar[bool] = True

    def select(self, seen, memory=None, /):
        order = seen.masked.cumsum(-1)
        changed = 1 if memory is None else 1 + (memory != seen.current).sum(-1, keepdim=True)
        return Selection(seen.masked & (order <= changed), memory=seen.current)


def test_a_memory_that_is_a_view_of_the_canvas(recorder):
    model = build("llada", 1, dtype=torch.float32)
    for prompts in (PROMPTS, PROMPTS[:1]):
        eager = steps_of(model, blank(model, prompts, 16), Remembers(), Options(graphs=False))
        assert [sum(step[3][0]) for step in eager] == [1, 2, 3, 4, 5, 1]
        for _ in range(3):
            assert steps_of(model, blank(model, prompts, 16), Remembers(), Options(graphs=True)) == eager
    assert recorder.replayed > 8


@dataclass(frozen=True)
class Swaps(Strategy):
    """Hands two tensors of its memory back in each other's place."""

    recordable: ClassVar[bool] = True

    def select(self, seen, memory=None, /):
        one, two = (torch.ones(1), torch.full((1,), 2.0)) if memory is None else memory
        return Selection(seen.masked & (seen.masked.cumsum(-1) <= one), memory=(two, one))


def test_memory_in_another_place(recorder):
    model = build("llada", 1, dtype=torch.float32)
    batch = blank(model, [*PROMPTS, [1]], 9)
    eager = steps_of(model, batch, Swaps(), Options(graphs=False))
    assert [sum(step[3][0]) for step in eager] == [1, 2, 1, 2, 1, 2]
    for _ in range(2):
        assert steps_of(model, batch, Swaps(), Options(graphs=True)) == eager
    assert recorder.replayed > 4


class Plain(Strategy):
    def select(self, seen, memory=None, /):
        return Selection(seen.masked)


@pytest.mark.parametrize(
    ("strategy", "fields", "complaint"),
    [
        (Plain(), {}, "Plain does not declare itself recordable"),
        (TopK(), {"sampling": Sampling(temperature=0.5)}, "temperature is 0.5"),
    ],
)
def test_what_is_never_recorded(recorder, strategy, fields, complaint):
    model = build("llada", 1, dtype=torch.float32)
    with pytest.raises(DapdError, match=complaint):
        decode(model, blank(model, PROMPTS, 8), strategy, Options(graphs=True, **fields))
    list(decode(model, blank(model, PROMPTS, 8), strategy, Options(**fields)))
    assert recorder.recorded == 0


def test_models_and_devices_that_are_not_recorded():
    model = build("llada", 1, dtype=torch.float32)
    with pytest.raises(DapdError, match="the device is cpu"):
        decode(model, blank(model, PROMPTS, 8), TopK(), Options(graphs=True))
    with pytest.raises(DapdError, match="Scripted may read"):
        decode(Scripted(rising), blank(Scripted(rising), [[1]], 4), TopK(), Options(graphs=True))
    assert all(declared(strategy, "recordable", False) for strategy in PRESETS.values())


def test_packed_tensors():
    tensors = [
        torch.tensor([True, False, True]),
        torch.arange(6).view(2, 3).T,
        torch.tensor(1.5, dtype=torch.bfloat16),
        torch.zeros(0, 4),
        torch.rand(2, 2, dtype=torch.float64),
        torch.tensor([[7]], dtype=torch.uint8),
        torch.rand(3),
    ]
    packing = tree.Packing(tensors)
    packed = packing.pack(tensors)
    assert packed.shape == (3 + 48 + 2 + 0 + 32 + 1 + 12,)
    for old, new in zip(tensors, packing.unpack(packed.clone()), strict=True):
        assert (old.dtype, old.shape) == (new.dtype, new.shape)
        assert torch.equal(old, new)
    assert all(old is new for old, new in zip(tensors, tree.on_host(tensors), strict=True)), "they are there already"
    assert tree.filled({"a": [tensors[0], 2], "b": tensors[1]}, [1, 3]) == {"a": [1, 2], "b": 3}


def test_trees():
    x, y = torch.ones(2), torch.zeros(3)
    wrapped = {"a": [x, 1], "b": (y, "text"), "c": None}
    assert [t.shape for t in tree.tensors(wrapped)] == [(2,), (3,)]
    assert tree.signature(wrapped) == tree.signature(tree.mapped(torch.zeros_like, wrapped))
    assert tree.signature(wrapped) != tree.signature({**wrapped, "c": 1})
    assert tree.signature(wrapped) != tree.signature(tree.mapped(torch.Tensor.double, wrapped))


def own():
    """A model that no other test shares."""
    from dapd import random
    from reference.models import shape

    return random(shape("llada"), seed=0)


def test_a_model_that_was_moved_starts_anew(recorder):
    model = own()
    first = replay.replays_for(model, TopK(), Options())
    assert replay.replays_for(model, TopK(), Options()) is first
    first.device = torch.device("meta")
    second = replay.replays_for(model, TopK(), Options())
    assert second is not first
    assert second.device == model.device


@pytest.mark.parametrize("reuse", ["none", "dual"])
def test_inference_mode_leaves_nothing_behind(recorder, reuse):
    model, options = own(), Options(block_length=4, reuse=reuse)
    canvas = blank(model, [[1, 2, 3]], 8)
    eager = steps_of(model, canvas, TopK(), replace(options, graphs=False))
    with torch.inference_mode():
        assert steps_of(model, canvas, TopK(), options) == eager
    for _ in range(2):
        assert steps_of(model, canvas, TopK(), options) == eager
    with torch.inference_mode():
        assert steps_of(model, canvas, TopK(), options) == eager


def test_what_makes_another_recording(recorder):
    model = own()
    model.register_buffer("scale", torch.ones(1))

    def recorded(**fields):
        before = recorder.recorded
        list(decode(model, blank(model, [[1, 2, 3]], 4), TopK(), Options(**fields)))
        return recorder.recorded - before

    assert [recorded(), recorded(graphs=True), recorded(seed=3)] == [1, 0, 0]
    with kernels.disabled():
        assert [recorded(), recorded()] == [1, 0]
    with torch.autocast("cpu", torch.bfloat16):
        assert recorded() == 1
    with sdpa_kernel([SDPBackend.MATH]):
        assert [recorded(), recorded()] == [1, 0]
    model.scale = torch.ones(1)
    assert [recorded(), recorded()] == [1, 0]
    model.double()
    assert [recorded(), recorded()] == [1, 0]


def test_the_mode_may_change_between_two_steps(recorder):
    model = own()
    steps = decode(model, blank(model, [[1, 2, 3]], 12), TopK())
    for _ in range(3):
        next(steps)
    assert recorder.recorded == 1
    with kernels.disabled():
        for _ in range(3):
            next(steps)
    assert recorder.recorded == 2
    list(steps)
    assert recorder.recorded == 2


def test_a_precision_set_for_one_backend_is_no_error(monkeypatch):
    def fails():
        raise RuntimeError("mix of the legacy and new APIs")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", fails)
    assert kernels.mode(torch.device("cpu")) == kernels.mode(torch.device("cpu"))


def test_a_cast_model_gets_another_cache(recorder):
    model, options = own(), Options(block_length=4, reuse="dual", graphs=True)
    for dtype in (torch.float32, torch.float64, torch.float32):
        model.to(dtype)
        canvas = blank(model, [[1, 2, 3]], 8)
        eager = steps_of(model, canvas, TopK(), replace(options, graphs=False))
        for _ in range(2):
            assert steps_of(model, canvas, TopK(), options) == eager


def test_a_caller_may_write_into_its_canvas(recorder):
    model, found = own(), []
    canvas = blank(model, PROMPTS, 8)
    for number in range(3):
        canvas.tokens[:, canvas.start - 1] = number
        eager = steps_of(model, canvas, TopK(), Options(graphs=False))
        found.append(eager[-1][-1])
        assert steps_of(model, canvas, TopK(), Options()) == eager
        steps = decode(model, canvas, TopK())
        canvas.tokens[:, canvas.start - 1] = number + 10
        assert list(steps)[-1].canvas.tokens.tolist() == found[-1]
    assert found[0] != found[1]


@dataclass
class NoHash:
    """Not frozen: it can be compared and has no hash."""

    recordable: ClassVar[bool] = True

    def select(self, seen, memory=None, /):
        return Selection(seen.masked)


class ListLike(float):
    """A field that keeps a frozen dataclass from having a hash."""

    __hash__ = None


def test_what_has_no_hash_runs_as_it_is(recorder):
    model = own()
    with pytest.raises(DapdError, match="the strategy NoHash has no hash"):
        decode(model, blank(model, PROMPTS, 8), NoHash(), Options(graphs=True))
    assert len(list(decode(model, blank(model, PROMPTS, 8), NoHash()))) == 1
    with pytest.raises(DapdError, match="the strategy Dawn has no hash"):
        decode(model, blank(model, PROMPTS, 8), replace(Dawn(), edge=ListLike(0.1)), Options(graphs=True))


class Overrides(Threshold):
    """Says nothing of its own `select`, which might do anything."""

    def select(self, seen, memory=None, /):
        return super().select(seen, memory)


class Says(Overrides):
    recordable: ClassVar[bool] = True
    logits = False


class Renamed(Threshold):
    """Leaves `select` as it is."""


@pytest.mark.parametrize(("kind", "kept"), [(Overrides, False), (Says, True), (Renamed, True), (Threshold, True)])
def test_what_is_declared_of_another_select(recorder, kind, kept):
    strategy, model = kind(0.9), own()
    assert Needs.of(strategy).logits is not kept
    assert (replay.replays_for(model, strategy, Options()) is not None) is kept


def test_what_an_object_declares_of_itself():
    strategy = SimpleNamespace(select=Threshold(0.9).select, logits=False)
    assert not Needs.of(strategy).logits
    strategy = Threshold(0.9)
    object.__setattr__(strategy, "select", TopK().select)
    assert Needs.of(strategy).logits


@pytest.mark.parametrize("name", ["klass", "eb-sampler"])
def test_a_step_does_not_hold_the_memory(recorder, monkeypatch, name):
    """What is kept of a step lies in another piece than what the strategy remembers."""
    model, pieces = own(), []
    real = replay.Recording.__call__

    def called(self, state, noise):
        outcome = real(self, state, noise)
        pieces.append({tensor.untyped_storage().data_ptr() for tensor in tree.tensors(outcome.state.memory)})
        return outcome

    monkeypatch.setattr(replay.Recording, "__call__", called)
    strategy = Klass(0.4, 1.0) if name == "klass" else PRESETS[name]
    steps = list(decode(model, blank(model, PROMPTS, 8), strategy, Options(graphs=True)))
    assert pieces
    for step, memory in zip(steps[-len(pieces) :], pieces, strict=True):
        assert not memory & {tensor.untyped_storage().data_ptr() for tensor in tree.tensors(step)}
        assert bool(memory) is (name == "klass")


def test_many_blocks_with_reuse_are_recorded_once(recorder):
    model, options = own(), Options(block_length=2, reuse="dual")
    canvas = blank(model, [[1, 2, 3]], 40)
    for _ in range(2):
        list(decode(model, canvas, TopK(), options))
    before = recorder.recorded
    assert before == 2 * 20
    list(decode(model, canvas, TopK(), options))
    assert recorder.recorded == before


@pytest.mark.filterwarnings("ignore:steps of strategy")
def test_what_is_refused_is_not_remembered_without_end(recorder, monkeypatch):
    monkeypatch.setattr(replay, "MAX_KNOWN", 3)
    model, recorder.refuse = own(), RuntimeError()
    for k in range(1, 7):
        list(decode(model, blank(model, [[1, 2, 3]], 16), TopK(k=k)))
    store = replay.replays_for(model, TopK(), Options())
    assert len(store.known) == 3
    assert not store.kept


def test_no_memory_now_is_not_no_memory_for_good(recorder, monkeypatch):
    model, canvas = own(), blank(own(), [[1, 2, 3]], 8)
    tried, record = [], recorder.record
    monkeypatch.setattr(recorder, "record", lambda work: (tried.append(work), record(work))[1])
    recorder.refuse = torch.OutOfMemoryError("CUDA out of memory")
    with pytest.warns(UserWarning, match="out of memory"):
        list(decode(model, canvas, TopK()))
    assert len(tried) == 1, "once in a decoding"
    recorder.refuse = None
    list(decode(model, canvas, TopK()))
    assert recorder.recorded == 1
    assert recorder.replayed == 8
