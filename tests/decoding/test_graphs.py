"""Recorded passes: the same trajectories as without, for every decoder; buffers, keys, and how many are kept."""

from dataclasses import dataclass, field, replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from dapd import PRESETS, DapdError, Needs, Options, Recordings, Sampling, Selection, Strategy, decode, kernels
from dapd.decoding import Decoder, Step, graphs, tree
from dapd.models import random
from dapd.models.cache import KVPool
from dapd.strategies import Dawn, DreamSchedule, Klass, Threshold, TopK
from decoding.rerun import Rerun
from reference.models import PROMPTS, build, shape
from reference.ours import blank, run
from reference.scripted import Scripted, rising


@pytest.fixture
def recorder():
    return Rerun()


@pytest.fixture
def recordings(recorder):
    return Recordings(recorder)


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
    "run of EOS": Options(eos_run=0.1),
}


def steps_of(model, canvases, strategy, options, recordings=None):
    """Everything a step holds, as plain values."""
    return [
        (s.row, s.index, s.window, *(t.tolist() for t in (s.commit, s.token, s.confidence)),
         None if s.tail is None else s.tail.tolist(), None if s.edges is None else s.edges.tolist(),
         s.canvas.tokens.tolist())
        for s in decode(model, canvases, strategy, options, recordings=recordings)
    ]  # fmt: skip


def close(first, second):
    """Equal but for the last digits of confidences, which padding changes."""
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        assert one[:5] + one[6:] == other[:5] + other[6:]
        assert one[5] == pytest.approx(other[5], abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("loop", list(LOOPS))
def test_replayed_and_eager_decoding_are_the_same(recorder, recordings, family, loop):
    model, options = build(family, 1, sharpness=5.0), LOOPS[loop]
    for name, strategy in DECODERS.items():
        if strategy.needs.sees == "canvas" and options.reuse != "none":
            continue
        recorder.replayed = 0
        for prompts in (PROMPTS, [row[::-1] for row in PROMPTS]):
            canvases = blank(model, prompts, 8)
            eager = steps_of(model, canvases, strategy, replace(options, graphs=False))
            close(steps_of(model, canvases, strategy, replace(options, graphs=True), recordings), eager)
        assert recorder.replayed > 0, name


def test_a_second_generation_records_nothing_new(recorder, recordings):
    """Another prompt, another length and another seed are passes of the same kind; another strategy is not."""
    model = build("llada", 1, dtype=torch.float32)
    for number, prompt in enumerate(([1, 2, 3], [4, 5, 6], [7, 8, 9, 10, 11])):
        list(decode(model, blank(model, [prompt], 8), TopK(), Options(seed=number), recordings=recordings))
        assert recorder.recorded == 1
    assert recorder.replayed == 3 * 8 - 1
    list(decode(model, blank(model, [[1] * 2 * graphs.BUCKET], 8), TopK(), recordings=recordings))
    list(decode(model, blank(model, [[1, 2, 3]], 8), TopK(k=2), recordings=recordings))
    assert recorder.recorded == 3, "a length in another bucket and another strategy are other recordings"


def test_all_blocks_share_their_recordings(recorder, recordings):
    model, options = own(), Options(block_length=2, reuse="dual")
    for _ in range(2):
        list(decode(model, blank(model, [[1, 2, 3]], 40), TopK(), options, recordings=recordings))
    assert recorder.recorded == 2, "full passes, and passes over a block"


def test_steps_keep_their_tensors(recordings):
    """A recording writes over its own; what a step holds is a copy."""
    model = build("llada", 1, dtype=torch.float32)
    steps = [s for s in decode(model, blank(model, PROMPTS, 8), TopK(), recordings=recordings) if s.row == 0]
    assert [int(step.canvas.masked.sum()) for step in steps] == [7, 6, 5, 4, 3, 2, 1, 0]
    assert all(int(step.commit.sum()) == 1 for step in steps)


@pytest.mark.parametrize("reuse", ["none", "dual"])
def test_two_decodings_at_once_do_not_meet(recordings, reuse):
    model, options = build("llada", 1, dtype=torch.float32), Options(block_length=4, reuse=reuse)
    pair = [blank(model, [[1, 2, 3]], 8), blank(model, [[9, 8, 7]], 8)]
    alone = [run(model, canvases, Klass(0.4, 1.0), replace(options, graphs=False))[0].tokens for canvases in pair]
    for _ in range(3):
        ends = [decode(model, canvases, Klass(0.4, 1.0), options, recordings=recordings) for canvases in pair]
        last = [None, None]
        while any(ends):
            for number, steps in enumerate(ends):
                step = next(steps, None) if steps is not None else None
                ends[number] = steps if step is not None else None
                last[number] = step or last[number]
        assert [step.canvas.tokens.tolist() for step in last] == alone


def test_only_so_many_are_kept(recordings, monkeypatch):
    monkeypatch.setattr(graphs, "MAX_RECORDINGS", 3)
    model = build("llada", 1, dtype=torch.float32)
    for k in range(1, 7):
        list(decode(model, blank(model, [[1, 2, 3]], 8), TopK(k=k), recordings=recordings))
        assert len(recordings.kept) <= 3
    for rows in range(1, 6):
        list(decode(model, blank(model, [[1]] * rows, 8), TopK(), Options(reuse="prefix"), recordings=recordings))
    assert len(recordings.free) <= graphs.MAX_FREE_POOLS
    held = [recording.pool for recording in recordings.kept.values() if recording.pool is not None]
    assert all(any(pool is free for free in recordings.free) for pool in held), "no recording outlives its pool"


def test_only_so_many_kinds_are_remembered(recordings, monkeypatch):
    """Every request to a server may bring a bias of its own, and with it rules of its own."""
    monkeypatch.setattr(graphs, "MAX_KINDS", 3)
    model = build("llada", 1, dtype=torch.float32)
    for number in range(5):
        options = Options(sampling=Sampling(bias=((number, 1.0),)))
        list(decode(model, blank(model, [[1, 2, 3]], 4), TopK(), options, recordings=recordings))
    assert (len(recordings.kept), len(recordings.occurrences), len(recordings.proven)) == (5, 3, 3)


@pytest.mark.parametrize("reuse", ["prefix", "dual"])
def test_rows_that_come_one_by_one_do_not_need_a_pool_each(recordings, reuse):
    """Every pool is recorded anew: eight rows, each longer than the last, are served from a few.

    A row that comes while the next pass of the others is on its way moves what they keep, and changes nothing for them.
    """
    model = build("llada", 1, dtype=torch.float32)
    options = Options(block_length=16, reuse=reuse)
    rows = [blank(model, [[1 + n] * (1 + 9 * n)], 32)[0] for n in range(7)]
    decoder = Decoder(model, recordings, places=7)
    steps: list[Step] = []
    pools: list[KVPool] = []
    left, ahead = 0, 0
    for number, canvas in enumerate(rows):
        known, on_its_way = len(recordings.kept), bool(decoder.ahead)
        decoder.admit(canvas, TopK(), options, name=number)
        steps += decoder.step()
        if decoder.pool not in pools:
            pools.append(decoder.pool)
            left, ahead = left + known, ahead + on_its_way
        steps += [step for _ in range(6) for step in decoder.step()]
        used = {id(recording.pool) for recording in recordings.kept.values()}
        assert used == {id(decoder.pool)}, "recordings of a pool that was left hold no memory"
    steps += decoder.steps()
    assert left, "there were recordings of pools that were left"
    assert ahead, "a pass was on its way when rows moved to another pool"
    assert len(pools) <= 4, [(pool.rows, pool.length) for pool in pools]
    assert pools[-1].rows <= 7, "no more than there are places"
    assert recordings.free == [pools[-1]]
    ends = {step.row: step.canvas.tokens.tolist() for step in steps}
    alone = [run(model, [canvas], TopK(), replace(options, graphs=False))[0].tokens for canvas in rows]
    assert [ends[number] for number in range(7)] == alone


def test_without_recordings_a_pool_is_as_large_as_it_must_be():
    model = build("llada", 1, dtype=torch.float32)
    decoder = Decoder(model)
    for number in range(3):
        canvas = blank(model, [[1] * (2 + 20 * number)], 8)[0]
        decoder.admit(canvas, TopK(), Options(reuse="prefix"), name=number)
        decoder.step()
    assert (decoder.pool.rows, decoder.pool.length) == (3, 50)


def test_weights_elsewhere_are_recorded_anew(recorder, recordings):
    model = own()
    canvases = blank(model, [[1, 2, 3]], 4)
    list(decode(model, canvases, TopK(), recordings=recordings))
    model.embed.weight.data = model.embed.weight.data.clone()
    list(decode(model, canvases, TopK(), recordings=recordings))
    assert recorder.recorded == 2
    model.layers[1].down_proj.weight.data = model.layers[1].down_proj.weight.data.clone()
    list(decode(model, canvases, TopK(), recordings=recordings))
    assert recorder.recorded == 3


def test_what_cannot_be_recorded_runs_as_it_is(recorder, recordings):
    model = build("llada", 1)
    recorder.refuse = RuntimeError("cudaErrorStreamCaptureUnsupported\nand more")
    eager = steps_of(model, blank(model, PROMPTS, 8), TopK(), Options(graphs=False))
    with pytest.warns(UserWarning, match="TopK run without CUDA graphs: cudaErrorStreamCaptureUnsupported"):
        close(steps_of(model, blank(model, PROMPTS, 8), TopK(), Options(), recordings), eager)
    with pytest.raises(DapdError, match="Threshold cannot be recorded"):
        list(decode(model, blank(model, PROMPTS, 8), Threshold(0.99), Options(graphs=True), recordings=recordings))


RECORDABLE = property(lambda self: Needs(recordable=True))


@dataclass(frozen=True)
class Remembers(Strategy):
    """Its memory is a view of what it saw, which the next pass writes over."""

    needs = RECORDABLE

    def select(self, seen, memory=None, /):
        order = seen.masked.cumsum(-1)
        changed = 1 if memory is None else 1 + (memory != seen.current).sum(-1, keepdim=True)
        return Selection(seen.masked & (order <= changed), memory=seen.current)


def test_a_memory_that_is_a_view_of_the_canvas(recorder, recordings):
    model = build("llada", 1)
    for prompts in (PROMPTS, PROMPTS[:1]):
        canvases = blank(model, prompts, 16)
        eager = steps_of(model, canvases, Remembers(), Options(graphs=False))
        assert [sum(step[3]) for step in eager if step[0] == 0] == [1, 2, 3, 4, 5, 1]
        for _ in range(3):
            close(steps_of(model, canvases, Remembers(), Options(graphs=True), recordings), eager)
    assert recorder.replayed > 8


@dataclass(frozen=True)
class Swaps(Strategy):
    """Hands two tensors of its memory back in each other's place."""

    needs = RECORDABLE

    def select(self, seen, memory=None, /):
        n = len(seen.masked)
        one, two = (torch.ones(n, 1), torch.full((n, 1), 2.0)) if memory is None else memory
        return Selection(seen.masked & (seen.masked.cumsum(-1) <= one), memory=(two, one))


def test_memory_in_another_place(recorder, recordings):
    model = build("llada", 1)
    batch = blank(model, [*PROMPTS, [1]], 9)
    eager = steps_of(model, batch, Swaps(), Options(graphs=False))
    assert [sum(step[3]) for step in eager if step[0] == 0] == [1, 2, 1, 2, 1, 2]
    for _ in range(2):
        close(steps_of(model, batch, Swaps(), Options(graphs=True), recordings), eager)
    assert recorder.replayed > 4


class Plain(Strategy):
    def select(self, seen, memory=None, /):
        return Selection(seen.masked)


@pytest.mark.parametrize(
    ("strategy", "fields", "complaint"),
    [
        (Plain(), {}, "Plain does not say that it is recordable"),
        (TopK(), {"sampling": Sampling(temperature=0.5)}, "temperature is 0.5"),
    ],
)
def test_what_is_never_recorded(recorder, recordings, strategy, fields, complaint):
    model = build("llada", 1, dtype=torch.float32)
    canvases = blank(model, PROMPTS, 8)
    with pytest.raises(DapdError, match=complaint):
        decode(model, canvases, strategy, Options(graphs=True, **fields), recordings=recordings)
    list(decode(model, canvases, strategy, Options(**fields), recordings=recordings))
    assert recorder.recorded == 0


def test_models_and_devices_that_are_not_recorded():
    model = build("llada", 1, dtype=torch.float32)
    with pytest.raises(DapdError, match="the device is cpu"):
        decode(model, blank(model, PROMPTS, 8), TopK(), Options(graphs=True))
    with pytest.raises(DapdError, match="model Scripted cannot be recorded"):
        decode(Scripted(rising), blank(Scripted(rising), [[1]], 4), TopK(), Options(graphs=True))
    assert all(strategy.needs.recordable for strategy in PRESETS.values())


@dataclass
class Counted:
    """Its first field is made from its second one."""

    half: torch.Tensor = field(init=False)
    count: torch.Tensor

    def __post_init__(self):
        self.half = self.count // 2


@dataclass(frozen=True)
class Counts(Strategy):
    needs = RECORDABLE

    def select(self, seen, memory=None, /):
        count, half = (memory.count, memory.half) if memory is not None else [torch.zeros_like(seen.progress.step)] * 2
        return Selection(seen.masked & (seen.masked.cumsum(-1) <= (1 + half)[:, None]), memory=Counted(count + 1))


def test_a_memory_with_a_field_that_is_made_from_another(recorder, recordings):
    model = build("llada", 1)
    canvases = blank(model, PROMPTS, 16)
    eager = steps_of(model, canvases, Counts(), Options(graphs=False))
    assert [sum(step[3]) for step in eager if step[0] == 0] == [1, 1, 2, 2, 3, 3, 4]
    for _ in range(2):
        close(steps_of(model, canvases, Counts(), Options(graphs=True), recordings), eager)
    assert recorder.replayed > 4


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
    packed = tree.packed(tensors)
    assert packed.shape == (3 + 48 + 2 + 0 + 32 + 1 + 12,)
    for old, new in zip(tensors, tree.unpacked(packed.clone(), tensors), strict=True):
        assert (old.dtype, old.shape) == (new.dtype, new.shape)
        assert torch.equal(old, new)
    assert tree.moved(tensors, torch.device("cpu")) is tensors, "they are there already"
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
    return random(shape("llada"), seed=0)


@pytest.mark.parametrize("reuse", ["none", "dual"])
def test_inference_mode_leaves_nothing_behind(recordings, reuse):
    model, options = own(), Options(block_length=4, reuse=reuse)
    canvases = blank(model, [[1, 2, 3]], 8)
    eager = steps_of(model, canvases, TopK(), replace(options, graphs=False))
    with torch.inference_mode():
        close(steps_of(model, canvases, TopK(), options, recordings), eager)
    for _ in range(2):
        close(steps_of(model, canvases, TopK(), options, recordings), eager)
    with torch.inference_mode():
        close(steps_of(model, canvases, TopK(), options, recordings), eager)


def test_what_makes_another_recording(recorder, recordings):
    model = own()
    model.register_buffer("scale", torch.ones(1))

    def recorded(**fields):
        before = recorder.recorded
        list(decode(model, blank(model, [[1, 2, 3]], 4), TopK(), Options(**fields), recordings=recordings))
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


def test_the_mode_may_change_between_two_steps(recorder, recordings):
    model = own()
    steps = decode(model, blank(model, [[1, 2, 3]], 12), TopK(), recordings=recordings)
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


def test_a_cast_model_gets_other_keys_and_values(recordings):
    model, options = own(), Options(block_length=4, reuse="dual", graphs=True)
    for dtype in (torch.float32, torch.float64, torch.float32):
        model.to(dtype)
        canvases = blank(model, [[1, 2, 3]], 8)
        eager = steps_of(model, canvases, TopK(), replace(options, graphs=False))
        for _ in range(2):
            close(steps_of(model, canvases, TopK(), options, recordings), eager)


def test_a_caller_may_write_into_its_canvas(recordings):
    model, ends = own(), []
    canvases = blank(model, PROMPTS, 8)
    for number in range(3):
        for canvas in canvases:
            canvas.tokens[canvas.start - 1] = number
        eager = steps_of(model, canvases, TopK(), Options(graphs=False))
        ends.append(eager[-1][-1])
        close(steps_of(model, canvases, TopK(), Options(), recordings), eager)
        steps = decode(model, canvases, TopK(), recordings=recordings)
        for canvas in canvases:
            canvas.tokens[canvas.start - 1] = number + 10
        assert list(steps)[-1].canvas.tokens.tolist() == ends[-1]
    assert ends[0] != ends[1]


@dataclass
class NoHash:
    """Not frozen: it can be compared and has no hash."""

    @property
    def needs(self):
        return Needs(recordable=True)

    def select(self, seen, memory=None, /):
        return Selection(seen.masked)


class ListLike(float):
    """A field that keeps a frozen dataclass from having a hash."""

    __hash__ = None


def test_what_has_no_hash_runs_as_it_is(recordings):
    model = own()
    canvases = blank(model, PROMPTS, 8)
    with pytest.raises(DapdError, match="strategy NoHash has no hash"):
        decode(model, canvases, NoHash(), Options(graphs=True), recordings=recordings)
    assert len(list(decode(model, canvases, NoHash(), recordings=recordings))) == len(PROMPTS)
    odd = replace(Dawn(layers=1.0), edge=ListLike(0.1))
    with pytest.raises(DapdError, match="strategy Dawn has no hash"):
        decode(model, canvases, odd, Options(graphs=True), recordings=recordings)


@pytest.mark.filterwarnings("ignore:passes of strategy")
def test_what_is_refused_is_not_remembered_without_end(recorder, recordings, monkeypatch):
    monkeypatch.setattr(graphs, "MAX_KINDS", 3)
    model, recorder.refuse = own(), RuntimeError()
    for k in range(1, 7):
        list(decode(model, blank(model, [[1, 2, 3]], 16), TopK(k=k), recordings=recordings))
    assert len(recordings.occurrences) == 3
    assert not recordings.kept


def test_no_memory_now_is_not_no_memory_for_good(recorder, recordings, monkeypatch):
    monkeypatch.setattr(graphs, "PATIENCE", 5)
    model, tried, record = own(), [], recorder.record
    monkeypatch.setattr(recorder, "record", lambda work, **more: (tried.append(work), record(work, **more))[1])
    recorder.refuse = torch.OutOfMemoryError("CUDA out of memory")
    with pytest.warns(UserWarning, match="out of memory"):
        list(decode(model, blank(model, [[1, 2, 3]], 7), TopK(), recordings=recordings))
    assert len(tried) == 1, "not at every pass"
    recorder.refuse = None
    list(decode(model, blank(model, [[1, 2, 3]], 7), TopK(), recordings=recordings))
    assert recorder.recorded == 1
