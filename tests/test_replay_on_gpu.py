"""Whole steps as CUDA graphs: the trajectories of eager decoding, no transfer but one, no memory that grows."""

import gc
import warnings
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import pytest
import torch

from dapd import PRESETS, Canvas, Options, Sampling, Selection, Strategy, decode, engine, random, replay
from dapd.step import Pass
from dapd.strategies import Dapd, Dawn, DreamSchedule, Klass, Threshold, TopK
from dapd.trace import Recorder
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
    "early stop, nucleus": Options(early_stop=True, sampling=Sampling(eos="defer", top_p=0.9)),
}
KINDS = [("llada", torch.float32), ("llada", torch.bfloat16), ("dream", torch.float32), ("dream", torch.bfloat16)]


def network(family, dtype, **changes):
    config = replace(shape(family), d_model=64, d_mlp=96, max_length=512, **changes)
    return random(config, seed=1, device="cuda", dtype=dtype, sharpness=7.0)


def blank(prompts, n_new=16):
    return Canvas.blank(prompts, n_new, mask_id=IDS.mask_id, pad_id=IDS.pad_id, device="cuda")


def trajectory(model, canvas, strategy, options):
    return [
        (step.window, step.active.tolist(), step.commit.tolist(), step.canvas.tokens.tolist())
        for step in decode(model, canvas, strategy, options)
    ]


@pytest.mark.parametrize(("family", "dtype"), KINDS)
@pytest.mark.parametrize("loop", list(LOOPS))
def test_replayed_and_eager_decoding_are_the_same(family, dtype, loop):
    model, options = network(family, dtype), LOOPS[loop]
    for name, strategy in DECODERS.items():
        if strategy.sees == "canvas" and options.reuse != "none":
            continue
        for prompts in (PROMPTS, [row[::-1] for row in PROMPTS], [PROMPTS[0]] * 8):
            eager = trajectory(model, blank(prompts), strategy, replace(options, graphs=False))
            assert trajectory(model, blank(prompts), strategy, replace(options, graphs=True)) == eager, name


@pytest.mark.parametrize(("family", "dtype"), KINDS)
@pytest.mark.parametrize("reuse", ["none", "prefix", "dual", "settled"])
@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[:1]], ids=["padded", "one row"])
def test_the_device_part_of_a_step_reads_nothing_back(family, dtype, reuse, prompts):
    model = network(family, dtype)
    for strategy in DECODERS.values():
        if strategy.sees == "canvas" and reuse != "none":
            continue
        options = Options(reuse=reuse, early_stop=True, graphs=False)
        run = engine._Run(model, blank(prompts), strategy, options)
        run.block_step = 0
        work = Pass(model, strategy, run.needs, options, run.borrow(()), run.padded)
        run.step(work, 0)
        state, plan = run.state, run.plan(0)
        draw = partial(run.drawn, plan)
        with torch.no_grad():
            work(state, plan, draw)
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
            try:
                work(state, plan, draw)
            finally:
                torch.cuda.set_sync_debug_mode("default")


def test_a_replay_reads_nothing_back():
    model = network("llada", torch.bfloat16)
    run = engine._Run(model, blank(PROMPTS), Dapd(), Options())
    assert run.replays is not None
    run.block_step = 0
    work = Pass(model, Dapd(), run.needs, run.options, None, run.padded)
    for _ in range(3):
        run.step(work, 0)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.no_grad():
            run.replays.run(work, run.state, run.plan(0))
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("graphs", [True, False])
def test_one_transfer_for_a_step_and_one_for_its_record(graphs):
    model, canvas = network("llada", torch.bfloat16), blank(PROMPTS)
    steps = decode(model, canvas, TopK(), Options(graphs=graphs, early_stop=True))
    traced = Recorder(canvas, model.profile.eos_id)
    for _ in range(3):
        traced.add(next(steps))
    torch.cuda.set_sync_debug_mode("warn")
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            step = next(steps)
            counts = [len(found)]
            traced.add(step)
            counts.append(len(found))
        assert counts == [1, 2], [str(warning.message) for warning in found]
    finally:
        torch.set_warn_always(False)
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("name", ["original", "dapd-staged", "klass"])
@pytest.mark.parametrize("reuse", ["none", "prefix"])
def test_memory_does_not_grow_with_the_steps(graphs, name, reuse):
    model = network("llada", torch.bfloat16)
    options = Options(graphs=graphs, reuse=reuse)
    seen = []
    for _ in range(3):
        for number, _step in enumerate(
            decode(model, blank([[1, 2, 3]] * 2, 128), TopK() if name == "original" else PRESETS[name], options)
        ):
            if number in (10, 14, 40, 80, 120):  # collecting takes a tenth of a second
                gc.collect()
                seen.append(torch.cuda.memory_allocated())
    slack = 4 << 20
    assert max(seen[-3:]) <= min(seen[:3]) + slack
    assert max(seen) - min(seen) <= 4 * slack


def test_two_decodings_at_once_do_not_meet():
    model, options = network("llada", torch.float32), Options(block_length=8, reuse="dual")
    canvases = [blank([[1, 2, 3]]), blank([[9, 8, 7]])]
    alone = [trajectory(model, canvas, TopK(), replace(options, graphs=False))[-1] for canvas in canvases]
    for _ in range(3):
        pairs = list(zip(*(decode(model, canvas, TopK(), options) for canvas in canvases), strict=True))
        assert [step.canvas.tokens.tolist() for step in pairs[-1]] == [end[-1] for end in alone]


@dataclass(frozen=True)
class Peeks(Strategy):
    """Says that it can be recorded, and reads a tensor on the host all the same."""

    recordable: ClassVar[bool] = True

    def select(self, seen, memory=None, /):
        assert seen.masked.sum().item() > 0
        return Selection(seen.masked & (seen.masked.cumsum(-1) == 1))


def test_what_cannot_be_recorded_runs_as_it_is():
    model = network("llada", torch.float32)
    eager = trajectory(model, blank(PROMPTS), Peeks(), Options(graphs=False))
    with pytest.warns(UserWarning, match="Peeks run without CUDA graphs"):
        assert trajectory(model, blank(PROMPTS), Peeks(), Options()) == eager
    assert trajectory(model, blank(PROMPTS), TopK(), Options(graphs=True))[-1][-1], "the device is none the worse"


def test_moved_weights_are_recorded_anew():
    model = network("llada", torch.float32)
    for _ in range(2):
        list(decode(model, blank(PROMPTS), TopK(), Options(graphs=True)))
    model.to(torch.bfloat16)
    eager = trajectory(model, blank(PROMPTS), TopK(), Options(graphs=False))
    assert trajectory(model, blank(PROMPTS), TopK(), Options(graphs=True)) == eager
    assert len(replay._REPLAYS[model].kept) <= replay.MAX_KEPT


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_settled_columns_on_the_device(family):
    model = network(family, torch.float32)
    for strategy in (TopK(), Dapd()):
        done = trajectory(model, blank(PROMPTS), strategy, Options(reuse="settled", refresh=4))
        assert IDS.mask_id not in done[-1][-1][0]
        everything = Options(reuse="settled", settle=1000)
        assert trajectory(model, blank(PROMPTS), strategy, everything) == trajectory(
            model, blank(PROMPTS), strategy, Options()
        )
