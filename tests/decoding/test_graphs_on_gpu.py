"""Whole passes as CUDA graphs: the trajectories of eager decoding, one transfer each way, no memory that grows."""

import gc
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from random import Random

import pytest
import torch

from dapd import PRESETS, Canvas, Decoder, Needs, Options, Recordings, Sampling, Selection, Strategy, decode
from dapd.decoding import decoder as decoders
from dapd.decoding import graphs, loop
from dapd.models import random
from dapd.strategies import Dapd, Dawn, DreamSchedule, Klass, Threshold, TopK
from reference.models import IDS, PROMPTS, shape

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

DECODERS = {
    **PRESETS,
    "dawn": Dawn(edge=0.2, sink=0.3, layers=1.0),
    "quota": TopK(steps=4),
    "margin": TopK(k=2, order="margin"),
    "random order": TopK(k=2, order="random"),
    "dream, drawn positions": DreamSchedule(steps=4, alg_temp=0.5),
    "budget": Threshold(0.8, budget=2),
    "klass, soft": Klass(0.4, 1.0, steps=4),
    "dapd, predictor rows": Dapd(0.05, 0.6, rows="predictor"),
}
LOOPS = {
    "one block": Options(),
    "blocks": Options(block_length=8, record_edges=True),
    "prefix": Options(reuse="prefix", refresh=3),
    "settled": Options(reuse="settled", refresh=4),
    "blocks, dual": Options(block_length=8, reuse="dual"),
    "run of EOS": Options(eos_run=0.1),
    "early stop, nucleus": Options(early_stop=True, sampling=Sampling(eos="defer", top_p=0.9)),
}
KINDS = [(family, dtype) for family in ("llada", "dream") for dtype in (torch.float32, torch.bfloat16, torch.float16)]


def network(family, dtype, **changes):
    config = replace(shape(family), d_model=64, d_mlp=96, max_length=512, **changes)
    return random(config, seed=1, device="cuda", dtype=dtype, sharpness=7.0)


def blank(prompts, n_new=16):
    return [Canvas.blank(prompt, n_new, mask_id=IDS.mask_id) for prompt in prompts]


@pytest.fixture
def recordings():
    return Recordings.on(torch.device("cuda"))


def trajectory(model, canvases, strategy, options, recordings=None):
    return [
        (step.row, step.window, step.commit.tolist(), step.canvas.tokens.tolist())
        for step in decode(model, canvases, strategy, options, recordings=recordings)
    ]


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("loop", list(LOOPS))
def test_replayed_and_eager_decoding_are_the_same(family, loop, recordings):
    """In fp32. Lengths are rounded up for recordings, so that in bf16 the two may part."""
    model, options = network(family, torch.float32), LOOPS[loop]
    for name, strategy in DECODERS.items():
        if strategy.needs.sees == "canvas" and options.reuse != "none":
            continue
        for prompts in (PROMPTS, [row[::-1] for row in PROMPTS], [PROMPTS[0]] * 8):
            eager = trajectory(model, blank(prompts), strategy, replace(options, graphs=False))
            recorded = trajectory(model, blank(prompts), strategy, replace(options, graphs=True), recordings)
            assert sorted(recorded, key=str) == sorted(eager, key=str), name
    assert recordings.kept


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("reuse", ["none", "prefix"])
def test_replayed_passes_in_bf16_are_those_of_the_first_run(family, reuse, recordings):
    """Of one shape, run as it is (the first time), recorded (the second) and replayed: bit for bit."""
    model = network(family, torch.bfloat16)
    for strategy in (TopK(), Dapd(), Klass(0.4, 1.0)):
        runs = [trajectory(model, blank(PROMPTS), strategy, Options(reuse=reuse), recordings) for _ in range(3)]
        assert runs[1] == runs[2]


RUN_PASS = loop.run_pass


def without_waiting(*args):
    torch.cuda.set_sync_debug_mode("error")
    try:
        return RUN_PASS(*args)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def three_passes_in(model, strategy, options, recordings, prompts):
    """A decoder that has everything behind it that happens only once."""
    decoder = Decoder(model, recordings)
    for number, canvas in enumerate(blank(prompts)):
        decoder.admit(canvas, strategy, options, name=number)
    for _ in range(3):
        decoder.step()
    return decoder


@pytest.mark.parametrize(("family", "dtype"), KINDS)
@pytest.mark.parametrize("reuse", ["none", "prefix", "dual", "settled"])
@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[:1]], ids=["padded", "one row"])
def test_the_device_part_of_a_pass_reads_nothing_back(family, dtype, reuse, prompts, monkeypatch):
    model = network(family, dtype)
    for strategy in DECODERS.values():
        if strategy.needs.sees == "canvas" and reuse != "none":
            continue
        options = Options(reuse=reuse, early_stop=True, graphs=False)
        decoder = three_passes_in(model, strategy, options, None, prompts)
        if decoder.rows:
            with monkeypatch.context() as patch:
                patch.setattr(decoders, "run_pass", without_waiting)
                assert decoder.step()


@pytest.mark.parametrize("graphed", [True, False])
def test_one_transfer_for_a_pass(graphed, recordings):
    """Whatever is shown of it: steps lie on the host."""
    model = network("llada", torch.bfloat16)
    options = Options(early_stop=True, graphs=None if graphed else False)
    decoder = three_passes_in(model, TopK(), options, recordings if graphed else None, PROMPTS)
    torch.cuda.set_sync_debug_mode("warn")
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            decoder.step()
        assert len(caught) <= 2, [str(warning.message) for warning in caught]
    finally:
        torch.set_warn_always(False)
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("graphed", [True, False])
@pytest.mark.parametrize("name", ["original", "dapd-staged", "klass"])
@pytest.mark.parametrize("reuse", ["none", "prefix"])
def test_memory_does_not_grow_with_the_passes(graphed, name, reuse, recordings):
    model = network("llada", torch.bfloat16)
    options = Options(graphs=None if graphed else False, reuse=reuse)
    strategy = TopK() if name == "original" else PRESETS[name]
    used = []
    for _ in range(3):
        steps = decode(model, blank([[1, 2, 3]] * 2, 128), strategy, options, recordings=recordings)
        for step in steps:
            if step.row == 0 and step.index in (10, 14, 40, 80, 120):  # collecting takes a tenth of a second
                gc.collect()
                used.append(torch.cuda.memory_allocated())
    slack = 4 << 20
    assert max(used[-3:]) <= min(used[:3]) + slack
    assert max(used) - min(used) <= 4 * slack


def test_two_decodings_at_once_do_not_meet(recordings):
    model, options = network("llada", torch.float32), Options(block_length=8, reuse="dual")
    pair = [blank([[1, 2, 3]]), blank([[9, 8, 7]])]
    alone = [trajectory(model, canvases, TopK(), replace(options, graphs=False))[-1] for canvases in pair]
    for _ in range(3):
        both = [decode(model, canvases, TopK(), options, recordings=recordings) for canvases in pair]
        last = list(zip(*both, strict=True))[-1]
        assert [step.canvas.tokens.tolist() for step in last] == [end[-1] for end in alone]


@dataclass(frozen=True)
class Peeks(Strategy):
    """Says that it can be recorded, and reads a tensor on the host all the same."""

    @property
    def needs(self):
        return Needs(recordable=True)

    def select(self, seen, memory=None, /):
        assert seen.masked.sum().item() > 0
        return Selection(seen.masked & (seen.masked.cumsum(-1) == 1))


def test_what_cannot_be_recorded_runs_as_it_is(recordings):
    model = network("llada", torch.float32)
    eager = trajectory(model, blank(PROMPTS), Peeks(), Options(graphs=False))
    with pytest.warns(UserWarning, match="Peeks run without CUDA graphs"):
        assert trajectory(model, blank(PROMPTS), Peeks(), Options(), recordings) == eager
    after = trajectory(model, blank(PROMPTS), TopK(), Options(graphs=True), recordings)
    assert after == trajectory(model, blank(PROMPTS), TopK(), Options(graphs=False)), "the device is none the worse"
    assert recordings.kept


def test_a_capture_that_breaks_off_spoils_nothing(recordings):
    """Work that a warm-up lets pass and a capture does not."""
    recorder = recordings.recorder
    calls = []

    def breaks():
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("in the middle of a capture")
        return torch.ones(3, device="cuda") * 2

    with pytest.raises(RuntimeError):
        recorder.record(breaks)
    replay = recorder.record(lambda: torch.ones(3, device="cuda") * 3)
    assert replay().tolist() == [3, 3, 3]
    model = network("llada", torch.float32)
    for _ in range(2):
        assert trajectory(model, blank(PROMPTS), TopK(), Options(graphs=True), recordings)


def test_moved_weights_are_recorded_anew(recordings):
    model = network("llada", torch.float32)
    for _ in range(2):
        list(decode(model, blank(PROMPTS), TopK(), Options(graphs=True), recordings=recordings))
    before = len(recordings.kept)
    model.embed.weight.data = model.embed.weight.data.clone()
    eager = trajectory(model, blank(PROMPTS), TopK(), Options(graphs=False))
    assert trajectory(model, blank(PROMPTS), TopK(), Options(graphs=True), recordings) == eager
    assert before < len(recordings.kept) <= graphs.MAX_RECORDINGS


def mixed(draw, count):
    """Texts of all lengths under all kinds of rules; rows with a temperature are the ones that are never recorded."""
    strategies = [TopK(2), Dapd(0.05, 0.6), Threshold(0.5), Klass(0.4, 1.0), Dawn(edge=0.2, sink=0.3, layers=1.0)]
    modes = ["none", "none", "none", "prefix", "dual", "settled"]
    jobs = []
    for _ in range(count):
        prompt = [draw.randrange(3, 30) for _ in range(draw.randrange(1, 70))]
        strategy = draw.choice(strategies)
        options = Options(
            block_length=draw.choice([None, 8]),
            reuse="none" if strategy.needs.sees == "canvas" else draw.choice(modes),
            sampling=Sampling(temperature=draw.choice([0] * 9 + [0.5])),
        )
        jobs.append((*blank([prompt], draw.choice([8, 16, 24])), strategy, options))
    return jobs


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("seed", range(4))
def test_rows_that_come_and_go_on_the_device(family, seed, recordings):
    """Arrivals and departures, lengths, strategies, reuse and temperatures mixed: each row as alone, in fp32."""
    model = network(family, torch.float32)
    jobs = mixed(Random(seed), 24)
    alone = []
    for canvas, strategy, options in jobs:
        alone.append([s.commit.tolist() for s in decode(model, [canvas], strategy, replace(options, graphs=False))])
    for _ in range(3):  # the same arrivals again: most of their passes are recorded by then
        arrivals = Random(seed)
        decoder = Decoder(model, recordings, places=5)
        rows = {number: [] for number in range(len(jobs))}
        for number, (canvas, strategy, options) in enumerate(jobs):
            decoder.admit(canvas, strategy, options, name=number)
            for _ in range(arrivals.randrange(3)):
                for step in decoder.step():
                    rows[step.row].append(step.commit.tolist())
        for step in decoder.steps():
            rows[step.row].append(step.commit.tolist())
        assert [rows[number] for number in range(len(jobs))] == alone
    assert recordings.kept


@pytest.mark.parametrize("seed", range(4))
def test_threads_that_share_recordings(seed, recordings):
    """Two decodings at a time, each in its own thread: every text as alone."""
    model = network("llada", torch.float32)
    jobs = mixed(Random(seed), 12)
    alone = [trajectory(model, [c], strategy, replace(options, graphs=False)) for c, strategy, options in jobs]

    def run(job):
        canvas, strategy, options = job
        return trajectory(model, [canvas], strategy, options, recordings)

    for _ in range(3):  # run as they are, recorded, replayed
        with ThreadPoolExecutor(2) as threads:
            assert list(threads.map(run, jobs)) == alone
    assert recordings.kept


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_settled_columns_on_the_device(family):
    model = network(family, torch.float32)
    for strategy in (TopK(), Dapd()):
        done = trajectory(model, blank(PROMPTS), strategy, Options(reuse="settled", refresh=4))
        assert IDS.mask_id not in done[-1][-1]
        everything = Options(reuse="settled", settle=1000)
        assert trajectory(model, blank(PROMPTS), strategy, everything) == trajectory(
            model, blank(PROMPTS), strategy, Options()
        )
