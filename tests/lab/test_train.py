"""The trainer at a tiny size: it learns, it goes on after a kill as if nothing had happened, its export loads."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partialmethod
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from typer.testing import CliRunner

from dapd.cli.lab import app
from dapd.errors import DapdError
from dapd.lab import checkpoint, data, train
from dapd.lab.evaluate import Exam, Way, blank, evaluate, evaluate_ways, step_by_step
from dapd.lab.loss import add_noise, losses
from dapd.lab.settings import LENGTHS, MIXTURES, TrainSettings, with_values
from dapd.lab.tasks import TASKS, Split, get
from dapd.lab.tokenizer import LabTokenizer
from dapd.lab.train import LOG, STATE, Batches, Trainer, clip, new_state, rate_at
from dapd.models import Transformer, load_network

TINY = TrainSettings(
    tasks=("shuffle", "sudoku"),
    layers=2,
    width=32,
    heads=2,
    mlp=64,
    rows=600,
    workers=1,
    minutes=0,
    steps=30,
    tokens=700,
    lr=5e-3,
    warmup=4,
    ema=0.9,
    roomy=0.3,
    compile=False,
    device="cpu",
    log_every=5,
    probe_every=10,
    save_every=10,
    prompts=0,
)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="module")
def _typical_rows_are_made_once() -> Iterator[None]:
    """Thousands of rows give the batches their shapes, and most trainers of this file have the same."""
    made: dict[Any, list[data.Rows]] = {}

    def typical(settings: TrainSettings) -> list[data.Rows]:
        key = settings.tasks, settings.shares, settings.roomy
        if key not in made:
            made[key] = data.typical(settings)
        return made[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "typical", typical)
        yield


def trainer(folder: Path, settings: TrainSettings = TINY, records: list[dict[str, Any]] | None = None) -> Trainer:
    folder.mkdir(exist_ok=True)
    return Trainer(settings, folder, (records if records is not None else []).append, time.monotonic())


def test_mixture_covers_every_task() -> None:
    assert all(set(mixture) == set(TASKS) for mixture in MIXTURES.values())


def test_rows_hold_prompt_answer_and_eos() -> None:
    settings = replace(TINY, tasks=tuple(TASKS), rows=500, roomy=0.3)
    tokenizer = LabTokenizer.build()
    pool = data.PoolMaker(settings).result()
    assert sum(map(len, pool)) == 500
    head, tail = tokenizer.encode("<|startoftext|><|start_header_id|>user"), tokenizer.encode("<|end_header_id|>\n\n")
    for length, rows in zip(LENGTHS, pool, strict=True):
        assert rows.tokens.shape[1] == length
        for tokens, start, answer, task in zip(*(t.tolist() for t in vars(rows).values()), strict=True):
            prompt = tokens[tokens.index(tokenizer.bos_id) : start]
            assert set(tokens[: start - len(prompt)]) <= {tokenizer.eos_id}
            assert (prompt[: len(head)], prompt[-len(tail) :]) == (head, tail)
            text = "".join(tokenizer.tokens(prompt[5 : prompt.index(tokenizer.eot_id)]))
            assert Split.of(text) is Split.TRAIN
            assert tokens[start + answer - 1] == tokenizer.eot_id
            assert set(tokens[start + answer :]) <= {tokenizer.eos_id}
            assert settings.tasks[task] in TASKS


def test_pool_does_not_depend_on_the_number_of_processes() -> None:
    settings = replace(TINY, rows=data.CHUNK + 100, tasks=("shuffle",))
    alone, together = (data.PoolMaker(replace(settings, workers=n)).result() for n in (1, 2))
    for a, b in zip(alone, together, strict=True):
        assert torch.equal(a.tokens, b.tokens)
        assert torch.equal(a.start, b.start)


def test_rows_have_the_canvas_of_their_prompt_or_are_short() -> None:
    """A roomy row holds at least the canvas on which its prompt is decoded; the others only what they need."""
    eos = LabTokenizer.build().eos_id
    smallest = min(get("quiz").canvas(example) for example in get("quiz").examples(40))

    def rooms(roomy: float) -> list[int]:
        """The columns from the answer's first to the row's end, of rows that were not moved along."""
        columns = []
        settings = replace(TINY, tasks=("quiz",), rows=400, roomy=roomy)
        for length, rows in zip(LENGTHS, data.PoolMaker(settings).result(), strict=True):
            shorter = max([0, *(other for other in LENGTHS if other < length)])
            for first, start, answer in torch.stack((rows.tokens[:, 0], rows.start, rows.answer), 1).tolist():
                assert start + answer <= length
                if first != eos:
                    assert roomy or start + answer > shorter
                    columns.append(length - start)
        return columns

    assert min(rooms(1.0)) >= smallest > min(rooms(0.0))


@cache
def one_length() -> data.Rows:
    return next(r for r in data.PoolMaker(replace(TINY, rows=3000)).result() if len(r) > 1000)


def test_noise_masks_answers_alone_and_weighs_by_the_rate() -> None:
    rows = one_length()
    noisy = add_noise(rows, 2, 0.25, torch.Generator().manual_seed(0))
    masked = noisy.tokens == 2
    answer = torch.arange(rows.tokens.shape[1]) >= rows.start[:, None]
    assert not (masked & ~answer).any()
    target = rows.tokens.long()
    assert torch.equal(noisy.tokens[~masked], target[~masked])
    whole = (masked == answer).all(-1).float().mean()
    assert 0.25 < whole < 0.35
    # The masks come first, each once, and nothing else has a weight.
    n = int(masked.sum())
    assert sorted(noisy.at.tolist()) == list(range(target.numel()))
    assert masked.flatten()[noisy.at[:n]].all()
    assert (noisy.weight[:n] > 0).all()
    assert (noisy.weight[n:] == 0).all()
    assert torch.equal(noisy.target, target.flatten()[noisy.at])
    # The masks of a row count as many as it has columns from the answer on, whatever its rate.
    length = target.shape[1]
    per_row = torch.zeros(len(rows)).index_add_(0, noisy.at // length, noisy.weight) * rows.answer.float().sqrt()
    some = masked.any(-1)
    assert torch.allclose(per_row[some], answer.sum(-1).float()[some], rtol=1e-4)


def test_fewer_places_than_masks_lose_masks_and_nothing_else() -> None:
    rows = one_length()
    everything, few = (add_noise(rows, 2, 0.1, torch.Generator().manual_seed(0), most) for most in (0, 1000))
    assert torch.equal(everything.tokens, few.tokens)
    assert few.at.shape == (1000,)
    assert torch.equal(few.at, everything.at[:1000])
    assert torch.equal(few.weight, everything.weight[:1000])


def test_batches_hardly_ever_have_more_masks_than_places() -> None:
    pool = data.PoolMaker(replace(TINY, tasks=tuple(TASKS), rows=3000)).result()
    batches = Batches(pool, 40_000, 0.07, torch.device("cpu"))
    assert abs(batches.tokens - 40_000) < 4_000
    for step in range(40):
        for rows, most in batches.draw(torch.Generator().manual_seed(step)):
            noisy = add_noise(rows, 2, 0.07, torch.Generator().manual_seed(step), most)
            masks = int((noisy.tokens == 2).sum())
            assert masks <= most < 0.9 * rows.tokens.numel()
            assert len(noisy.at) == most


def test_the_loss_is_the_cross_entropy_of_the_masks() -> None:
    """Against the obvious version: logits everywhere, one row at a time."""
    tokenizer = LabTokenizer.build()
    state = new_state(TINY, tokenizer, torch.device("cpu"))
    rows = one_length()
    rows = data.Rows(*(tensor[:4] for tensor in vars(rows).values()))
    noisy = add_noise(rows, tokenizer.mask_id, 0.1, torch.Generator().manual_seed(0), 200)
    found = losses(state.network, noisy)
    span = slice(0, rows.tokens.shape[1])
    logits = state.network(noisy.tokens, span, span).logits.flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(logits[noisy.at], noisy.target, reduction="none") * noisy.weight
    assert torch.allclose(found, expected, atol=1e-5)
    assert isinstance(state.network.head, torch.nn.Linear)


@pytest.mark.parametrize("precision", ["float32", "autocast", "bfloat16", "auto"])
def test_products_have_the_precision_that_is_asked_for(tmp_path: Path, precision: str) -> None:
    run = trainer(tmp_path, replace(TINY, precision=precision, tasks=("sudoku",)))
    seen = []
    layer = run.state.network.layers[0]
    layer.o_proj.register_forward_hook(lambda module, args, output: seen.append((module.weight.dtype, output.dtype)))
    run.step()
    half = torch.bfloat16
    weights = half if precision == "bfloat16" else torch.float32
    assert set(seen) == {(weights, half if precision in ("autocast", "bfloat16") else weights)}


def test_gradients_are_clipped_together() -> None:
    gradients = {"a": torch.full((4,), 3.0), "b": torch.full((3, 3), -2.0)}
    whole = torch.cat([g.flatten() for g in gradients.values()])
    clip(gradients, 1.0)
    assert torch.allclose(torch.cat([g.flatten() for g in gradients.values()]), whole / whole.norm(), atol=1e-5)
    small = {"a": torch.full((2,), 0.1)}
    clip(small, 1.0)
    assert torch.allclose(small["a"], torch.full((2,), 0.1))


def test_learning_rate() -> None:
    settings = replace(TINY, lr=1.0, warmup=10)
    rates = [rate_at(settings, step, step / 100) for step in range(101)]
    assert rates[0] == pytest.approx(0.1, rel=0.01)
    assert max(rates) == pytest.approx(1.0, rel=0.03)
    assert rates[-1] == pytest.approx(0.02)
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_loss_falls(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = []
    run = trainer(tmp_path / "run", replace(TINY, steps=120, tasks=("sudoku",)), records)
    before = run.probe_loss()["sudoku"]
    run.run()
    assert run.probe_loss()["sudoku"] < 0.55 * before
    logged = [json.loads(line) for line in (tmp_path / "run" / LOG).read_text().splitlines()]
    assert logged == records
    assert [r["step"] for r in logged if "loss" in r] == list(range(5, 121, 5))
    assert next(r for r in logged if r.get("event") == "start")["parameters"] > 0
    assert all(r["tokens_per_s"] > 0 for r in logged if "loss" in r)


def test_training_goes_on_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(module: torch.nn.Module, **_: Any) -> None:
        def fail(*args: Any, **kwargs: Any) -> None:
            raise RuntimeError("no compiler here")

        module._compiled_call_impl = fail

    monkeypatch.setattr(torch.nn.Module, "compile", broken)
    records: list[dict[str, Any]] = []
    run = trainer(tmp_path / "run", replace(TINY, steps=2, compile=True), records)
    assert "no compiler here" in records[0]["reason"]
    run.run()
    assert run.state.step == 2


def test_time_budget_ends_training(tmp_path: Path) -> None:
    run = trainer(tmp_path / "run", replace(TINY, steps=10**6, minutes=0.05, reserve=1.0))
    run.run()
    assert 0 < run.state.step < 10**6
    assert run.state.seconds < 4.0


@pytest.mark.parametrize(("optimizer", "precision"), [("muon", "float32"), ("adamw", "float32"), ("muon", "bfloat16")])
def test_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, optimizer: str, precision: str) -> None:
    settings = replace(TINY, optimizer=optimizer, precision=precision, steps=20)
    whole = trainer(tmp_path / "whole", settings)
    whole.run()
    part = trainer(tmp_path / "part", settings)
    for _ in range(10):
        part.step()
    part.state.save(part.folder)
    part.note(loss=1.0)
    part.step()
    part.note(loss=2.0)  # logged after the saved state: done again, so this line must go
    with (part.folder / LOG).open("a") as log:
        log.write('{"step": 11, "lo')
    resumed = trainer(tmp_path / "part", settings)
    assert resumed.state.step == 10
    steps = [json.loads(line)["step"] for line in (part.folder / LOG).read_text().splitlines()]
    assert max(steps) == 10
    resumed.run()
    assert resumed.state.step == whole.state.step == settings.steps
    for a, b in zip(whole.state.average, resumed.state.average, strict=True):
        assert torch.equal(a, b)


def test_a_bf16_network_follows_its_fp32_weights(tmp_path: Path) -> None:
    run = trainer(tmp_path / "run", replace(TINY, precision="bfloat16", steps=60, tasks=("sudoku",)))
    assert run.state.network.dtype == torch.bfloat16
    before = run.probe_loss()["sudoku"]
    run.run()
    for weight, own in zip(run.state.weights.values(), run.state.network.parameters(), strict=True):
        assert weight.dtype == torch.float32
        assert torch.equal(weight.bfloat16(), own)
    assert run.probe_loss()["sudoku"] < 0.8 * before
    # Steps smaller than bf16 resolves are not lost: the weights that are trained are fp32.
    assert any(not torch.equal(w, w.bfloat16().float()) for w in run.state.weights.values())


def test_a_paused_run_goes_on_to_the_same_end(tmp_path: Path) -> None:
    """`--stop` leaves off in the middle; the schedule goes on as if nothing had happened."""
    changes = ["layers=1", "width=32", "heads=2", "mlp=64", "rows=300", "workers=1", "steps=60", "tokens=400"]
    changes += ["tasks=shuffle", "compile=false", "device=cpu", "log_every=20", "prompts=0", "warmup=5"]
    options = ["train", "--minutes", "0", *(word for change in changes for word in ("--set", change))]
    for name, runs in (("paused", (["--stop", "0.0005"], ["--resume"])), ("whole", ([],))):
        for extra in runs:
            folders = ["--out", str(tmp_path / name), "--run", str(tmp_path / f"{name}-run")]
            result = CliRunner().invoke(app, [*options, *folders, *extra])
            assert result.exit_code == 0, result.output
            if "--stop" in extra:
                assert "--resume continues" in result.output
                # Nothing was stepped before the time was up: there must still be something to resume from.
                assert (tmp_path / "paused-run" / STATE).is_file()
    a, b = (load_network(tmp_path / name) for name in ("paused", "whole"))
    for left, right in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.equal(left, right)


def test_kill_and_resume_by_command(tmp_path: Path) -> None:
    changes = ["layers=1", "width=32", "heads=2", "mlp=64", "rows=300", "workers=1", "steps=120", "tokens=400"]
    changes += [
        "tasks=shuffle",
        "compile=false",
        "device=cpu",
        "save_every=10",
        "log_every=20",
        "prompts=0",
        "warmup=5",
    ]
    options = ["train", "--minutes", "0", *(word for change in changes for word in ("--set", change))]
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    command = [sys.executable, "-m", "dapd", "lab", *options, "--out", str(tmp_path / "a"), "--run", str(killed)]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
    while not (killed / STATE).is_file():
        assert process.poll() is None, "the run ended before it saved a state"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    again = CliRunner().invoke(app, [*options, "--out", str(tmp_path / "a"), "--run", str(killed)])
    assert isinstance(again.exception, DapdError)
    assert "--resume" in str(again.exception)
    for out, run, extra in (("a", killed, ["--resume"]), ("b", whole, [])):
        result = CliRunner().invoke(app, [*options, "--out", str(tmp_path / out), "--run", str(run), *extra])
        assert result.exit_code == 0, result.output
    a, b = (load_network(tmp_path / name) for name in ("a", "b"))
    for left, right in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.equal(left, right)


def test_whoever_interrupts_a_training_is_told_how_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = ["layers=1", "width=32", "heads=2", "mlp=64", "rows=100", "workers=1", "tokens=400", "tasks=shuffle"]
    changes += ["compile=false", "device=cpu", "save_every=2"]
    options = ["train", *(word for change in changes for word in ("--set", change))]
    folders = ["--out", str(tmp_path / "out"), "--run", str(tmp_path / "run")]
    step = Trainer.step

    def interrupted(trainer: Trainer, last: int) -> torch.Tensor:
        if trainer.state.step == last:
            raise KeyboardInterrupt
        return step(trainer)

    for last, told in ((1, "no state was saved yet"), (3, "--resume continues from the last state that was saved")):
        monkeypatch.setattr(Trainer, "step", partialmethod(interrupted, last))
        result = CliRunner().invoke(app, [*options, *folders])
        assert (result.exit_code, told in result.stderr) == (130, True), result.output
    (tmp_path / "run" / STATE).write_bytes(b"half of a state")
    refused = CliRunner().invoke(app, [*options, *folders, "--resume"])
    assert "delete it to train from the start" in str(refused.exception)


def test_resume_with_other_settings_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = ["train", "--minutes", "0", "--out", str(tmp_path / "out"), "--run", str(run)]
    result = CliRunner().invoke(app, [*options, "--resume"])
    assert "no state to resume" in str(result.exception)
    trainer(run).state.save(run)
    for damaged in ("", "[]"):
        (run / "settings.json").write_text(damaged)
        result = CliRunner().invoke(app, [*options, "--resume"])
        assert isinstance(result.exception, DapdError)
        assert "settings.json is missing or damaged" in str(result.exception)
    before = {key: value for key, value in vars(TrainSettings()).items() if key not in ("minutes", "reserve")}
    (run / "settings.json").write_text(json.dumps({**before, "steps": 7}))
    result = CliRunner().invoke(app, [*options, "--set", "steps=8", "--resume"])
    assert "other settings (steps: 7 there, 8 here)" in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_a_state_with_other_tensors_is_refused(tmp_path: Path) -> None:
    run = trainer(tmp_path)
    run.state.save(tmp_path)
    content = torch.load(tmp_path / "state.pt", weights_only=True)
    content["weights"]["layers.0.q_proj.weight"] = content["weights"].pop("layers.0.qkv_proj.weight")
    torch.save(content, tmp_path / "state.pt")
    with pytest.raises(DapdError, match="another version"):
        run.state.load(tmp_path)


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as content:
            found |= {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118 (not a mapping)
    return found


def test_export_is_a_llada_checkpoint(tmp_path: Path) -> None:
    run = trainer(tmp_path / "run", replace(TINY, steps=2))
    run.run()
    run.export(tmp_path / "out")
    found = tensors(tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    top = {"model.transformer.wte.weight", "model.transformer.ln_f.weight", "model.transformer.ff_out.weight"}
    parts = ("attn_norm", "q_proj", "k_proj", "v_proj", "attn_out", "ff_norm", "ff_proj", "up_proj", "ff_out")
    blocks = {f"model.transformer.blocks.{i}.{part}.weight" for i in range(TINY.layers) for part in parts}
    assert set(found) == top | blocks
    assert {tensor.dtype for tensor in found.values()} == {torch.bfloat16}
    assert found["model.transformer.wte.weight"].shape == (config["vocab_size"], TINY.width)
    assert found["model.transformer.blocks.0.ff_proj.weight"].shape == (TINY.mlp, TINY.width)
    assert config["architectures"] == ["LLaDAModelLM"]
    assert config["vocab_size"] == config["embedding_size"] >= len(run.tokenizer)
    network = load_network(tmp_path / "out")
    assert network.profile.mask_id == run.tokenizer.mask_id
    for ours, theirs in zip(run.state.average, network.parameters(), strict=True):
        assert torch.equal(ours.bfloat16().float(), theirs)
    rows = run.probe[0]
    noisy = add_noise(rows, run.tokenizer.mask_id, 0.1, torch.Generator().manual_seed(0))
    assert losses(network, noisy).isfinite().all()


def test_whoever_may_read_new_files_may_read_the_weights(tmp_path: Path) -> None:
    run = trainer(tmp_path / "run")
    run.export(tmp_path / "out")
    (tmp_path / "plain").touch()
    modes = {file.stat().st_mode for file in (tmp_path / "out").iterdir()}
    assert modes == {(tmp_path / "plain").stat().st_mode}


def test_large_exports_are_sharded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trainer(tmp_path / "run")
    run.export(tmp_path / "one")
    monkeypatch.setattr(checkpoint, "SHARD_BYTES", 250_000)
    run.export(tmp_path / "out")
    run.export(tmp_path / "out")  # again, over the old files
    files = sorted((tmp_path / "out").glob("model-*.safetensors"))
    assert len(files) > 1
    assert max(file.stat().st_size for file in files) < 260_000
    one, many = (load_network(tmp_path / name) for name in ("one", "out"))
    for a, b in zip(one.parameters(), many.parameters(), strict=True):
        assert torch.equal(a, b)


def test_shipped_size_fits() -> None:
    settings = TrainSettings()
    with torch.device("meta"):
        network = Transformer(checkpoint.network_config(settings, LabTokenizer.build()))
    n = sum(p.numel() for p in network.parameters())
    assert 20_000_000 < n <= 24_000_000
    assert 2 * n <= 48_000_000


def test_step_by_step_fills_every_mask(tmp_path: Path) -> None:
    run = trainer(tmp_path / "run", replace(TINY, steps=3))
    tokenizer, network = run.tokenizer, run.state.network
    prompts = [tokenizer.chat(get("shuffle").make(random.Random(seed)).prompt) for seed in range(3)]
    canvases = [blank(network, prompt, n_new) for prompt, n_new in zip(prompts, (12, 8, 12), strict=True)]
    together = step_by_step(network, canvases)
    assert [len(row) for row in together] == [12, 8, 12]
    for canvas, row in zip(canvases, together, strict=True):
        assert not (row == tokenizer.mask_id).any()
        assert torch.equal(step_by_step(network, [canvas])[0], row)


def test_scores_of_an_untrained_model_are_low(tmp_path: Path) -> None:
    run = trainer(tmp_path / "run", replace(TINY, steps=1))
    (row,) = evaluate(run.state.network, run.tokenizer, [get("sudoku")], Exam(3))
    assert (row.task, row.prompts, row.score, row.whole) == ("sudoku", 3, 0.0, 0.0)
    assert len(row.misses) == 3


def test_ways_to_decode_step_by_step(tmp_path: Path) -> None:
    run = trainer(tmp_path / "run", replace(TINY, steps=1))
    ways = [Way(), Way(16), Way(32), Way(96), Way(eos="ban"), Way(16, "defer"), Way(n_blocks=2)]
    rows = evaluate_ways(run.state.network, run.tokenizer, get("sudoku"), Exam(2), ways)
    # Its canvas has 32 tokens: blocks of 32 are one block, and blocks of 96 do not fit.
    assert [way.label for way in rows] == [
        "one block", "block 16", "one block, EOS ban", "block 16, EOS defer", "2 blocks",
    ]  # fmt: skip
    assert rows[Way(16)].misses == rows[Way(n_blocks=2)].misses, "two blocks of its canvas are blocks of 16"
    prompt = run.tokenizer.chat(get("shuffle").make(random.Random(0)).prompt)
    (banned,) = step_by_step(run.state.network, [blank(run.state.network, prompt, 16)], Way(eos="ban"))
    assert not (banned == run.tokenizer.eos_id).any()
    with pytest.raises(DapdError, match=r"cannot be decoded in block 7: .* \(32\)"):
        evaluate_ways(run.state.network, run.tokenizer, get("sudoku"), Exam(2), [Way(7)])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stepz=3", "did you mean 'steps'"),
        ("steps", "name=value"),
        ("steps=many", "must be a whole number"),
        ("steps=0", "at least 1"),
        ("compile=perhaps", "true or false"),
        ("tasks=shuffle,sorted", "unknown task"),
        ("roomy=2", "between 0 and 1"),
        ("precision=half", "unknown precision"),
        ("optimizer=sgd", "unknown optimizer"),
        ("mixture=even", "unknown mixture"),
        ("tasks=quiz-5", "unknown task"),
        ("reserve=900", "reserve"),
        ("trained=head", "unknown trained"),
        ("trained=attention", "must come from a checkpoint, named by start"),
    ],
)
def test_bad_settings(text: str, message: str) -> None:
    with pytest.raises(DapdError, match=message):
        with_values(TrainSettings(minutes=9.0), [text])


def test_prompts_and_tasks_commands() -> None:
    result = CliRunner().invoke(app, ["prompts", "--json", "-n", "2"])
    assert result.output == CliRunner().invoke(app, ["prompts", "--json", "--prompts", "2"]).output
    shown = [json.loads(line) for line in result.output.splitlines()]
    assert len(shown) == 2 * len(TASKS)
    assert all(Split.of(line["prompt"]) is Split.TEST for line in shown)
    assert "shuffle" in CliRunner().invoke(app, ["tasks"]).output
    assert isinstance(CliRunner().invoke(app, ["prompts", "-t", "nope"]).exception, DapdError)
    assert isinstance(CliRunner().invoke(app, ["score", "nowhere"]).exception, DapdError)


def test_score_command_reads_off_the_best_way(tmp_path: Path) -> None:
    run = trainer(tmp_path / "run", replace(TINY, steps=1))
    run.export(tmp_path / "out")
    (tmp_path / "out" / "training.json").write_text('{"steps": 1}')
    command = ["score", str(tmp_path / "out"), "-t", "sudoku", "-n", "2", "--device", "cpu", "--record"]
    result = CliRunner().invoke(app, [*command, "--block", "0,16", "--eos", "none,ban"])
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "out" / "training.json").read_text())
    assert record["steps"] == 1
    ways = ["one block", "block 16", "one block, EOS ban", "block 16, EOS ban"]
    assert list(record["scores"]["sudoku"]["ways"]) == ways
    assert record["scores"]["sudoku"]["score"] == max(record["scores"]["sudoku"]["ways"].values())
    for bad, message in ((["--eos", "never"], "unknown EOS rule"), (["--block", "x"], "it must be lengths")):
        result = CliRunner().invoke(app, [*command, *bad])
        assert message in str(result.exception)
    (tmp_path / "out" / "training.json").unlink()
    for model in (tmp_path / "out", "lab"):
        result = CliRunner().invoke(app, ["score", str(model), *command[2:]])
        assert "--record writes to the training.json of a folder of your own" in str(result.exception)


def test_a_run_may_start_from_an_earlier_checkpoint(tmp_path: Path) -> None:
    """Words keep their vectors under another vocabulary."""
    settings = replace(TINY, seed=1)
    tokenizer = LabTokenizer.build()
    first = Transformer(checkpoint.network_config(settings, tokenizer))
    vocabulary = {token: len(tokenizer) - 1 - i for token, i in tokenizer.vocabulary.items()}
    shuffled = LabTokenizer(vocabulary)
    checkpoint.export(tmp_path / "first", settings, dict(first.named_parameters()), shuffled)
    second = Transformer(checkpoint.network_config(settings, tokenizer))
    checkpoint.start_from(second, tokenizer, tmp_path / "first")
    exact = first.embed.weight.detach().bfloat16().float()
    word = " plus"
    assert torch.equal(second.embed.weight[tokenizer.vocabulary[word]], exact[vocabulary[word]])
    assert torch.equal(second.layers[0].o_proj.weight, first.layers[0].o_proj.weight.bfloat16().float())
    larger = Transformer(checkpoint.network_config(replace(settings, mlp=2 * settings.mlp), tokenizer))
    with pytest.raises(DapdError, match="another size"):
        checkpoint.start_from(larger, tokenizer, tmp_path / "first")


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_attention_learns_alone(tmp_path: Path, precision: str) -> None:
    """The weights outside of attention leave as they came, also in a resumed run, and the loss still falls."""
    trainer(tmp_path / "first-run", replace(TINY, steps=1)).export(tmp_path / "first")
    (tmp_path / "first" / "training.json").write_text('{"steps": 1}')
    start = str(tmp_path / "first")
    settings = replace(TINY, start=start, seed=1, trained="attention", precision=precision, steps=40, tasks=("sudoku",))
    run = trainer(tmp_path / "run", settings)
    before = run.probe_loss()["sudoku"]
    for _ in range(20):
        run.step()
    run.state.save(run.folder)
    run = trainer(tmp_path / "run", settings)
    run.run()
    assert run.probe_loss()["sudoku"] < before
    run.export(tmp_path / "second")
    assert run.record()["started_from"] == {"steps": 1}
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("first", "second"))
    changed = {name for name, tensor in first.items() if not torch.equal(tensor, second[name])}
    parts = {name.split(".")[-2] for name in changed}
    assert parts == {"attn_norm", "q_proj", "k_proj", "v_proj", "attn_out"}
    assert run.record()["parameters"] == sum(tensor.numel() for tensor in first.values())
