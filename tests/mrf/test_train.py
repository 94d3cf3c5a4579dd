import dataclasses
import json

import pytest
import torch
from typer.testing import CliRunner

from dapd.cli.mrf import app
from dapd.errors import DapdError
from dapd.mrf import storage
from dapd.mrf.data import MASK_ID, draw_sequences
from dapd.mrf.network import Positions, Shape
from dapd.mrf.recipe import Masks, Recipe, Schedule, Variant, chosen, from_json, replicate, to_json
from dapd.mrf.sweep import SweepOptions, sweep
from dapd.mrf.train import LOSS_FLOOR, Execution, Trainer, masked_loss, run_steps, train

SMALL = Shape(n_layers=2, width=16, n_heads=2)


def small(steps: int = 12, **changes) -> Recipe:
    values = {"batch": 16, "warmup": 2, "variants": replicate(Variant(seed=3), 2), **changes}
    return Recipe(shape=SMALL, steps=steps, **values)


def test_the_loss_is_lladas():
    generator = torch.Generator().manual_seed(0)
    tokens = torch.stack([draw_sequences(4, 0), draw_sequences(4, 1)])
    logits = torch.randn(2, 4, 9, 3, generator=generator)
    p = torch.rand(2, 4, 1, generator=generator)
    masked = torch.rand(2, 4, 9, generator=generator) < p
    for m, found in enumerate(masked_loss(logits, tokens, masked, p)):
        total = 0.0
        for b in range(4):
            for n in range(9):
                if masked[m, b, n]:
                    total -= float(logits[m, b, n].log_softmax(-1)[tokens[m, b, n]]) / float(p[m, b, 0])
        assert float(found) == pytest.approx(total / 36, rel=1e-5)


def test_the_floor_is_the_entropy():
    assert pytest.approx(0.6103, abs=1e-4) == LOSS_FLOOR


def test_training_lowers_the_loss():
    """On a data set of one sequence, which is learnt at once; the whole one has a plateau of a thousand steps."""
    shape = dataclasses.replace(SMALL, positions=Positions.LEARNED)
    recipe = small(150, rate=1e-2, batch=32, variants=replicate(Variant(seed=3, dataset_size=1), 2))
    trainer = Trainer(dataclasses.replace(recipe, shape=shape), Execution(report_every=50))
    reports = list(run_steps(trainer))
    assert reports[-1].worst_loss < 0.5 * reports[0].loss


def test_one_update_is_adamws():
    """Per-model clipping and decay against torch's own optimiser on each model alone."""
    recipe = small(1, clip=0.1, warmup=0, variants=(Variant(1, weight_decay=0.1), Variant(2, weight_decay=0.0)))
    trainer = Trainer(recipe, Execution())
    before = {name: w.clone() for name, w in trainer.weights(mean=False).items()}
    generator = torch.Generator().manual_seed(0)
    gradients = {name: torch.randn(w.shape, generator=generator) for name, w in before.items()}
    for name, parameter in trainer.network.named_parameters():
        parameter.grad = gradients[name].clone()
    trainer.rate.fill_(1e-2)
    trainer.update()
    for m, variant in enumerate(recipe.variants):
        alone = {name: torch.nn.Parameter(w[m].clone()) for name, w in before.items()}
        for name, parameter in alone.items():
            parameter.grad = gradients[name][m].clone()
        torch.nn.utils.clip_grad_norm_(alone.values(), recipe.clip)
        torch.optim.AdamW(alone.values(), lr=1e-2, weight_decay=variant.weight_decay).step()
        for name, parameter in trainer.network.named_parameters():
            torch.testing.assert_close(parameter[m], alone[name], atol=1e-5, rtol=1e-4)


def test_a_finite_data_set_is_all_that_is_drawn():
    trainer = Trainer(small(1, variants=(Variant(4, dataset_size=3), Variant(5))), Execution())
    allowed = {tuple(s) for s in draw_sequences(3, 4).tolist()}
    rows = [tuple(s) for _ in range(5) for s in trainer.draw()[0].tolist()]
    assert set(rows) == allowed
    assert len({tuple(s) for _ in range(20) for s in trainer.draw()[1].tolist()}) > 100


def test_the_running_mean_follows_the_weights():
    trainer = Trainer(small(30, ema=0.9), Execution())
    list(run_steps(trainer))
    last, mean = trainer.weights(mean=False)["head"], trainer.weights(mean=True)["head"]
    assert not torch.equal(last, mean)
    assert float((last - mean).norm()) < float(last.norm())


def test_rates():
    cosine = small(100, warmup=10, rate=1.0)
    assert cosine.rate_at(0) == pytest.approx(0.1)
    assert cosine.rate_at(10) == pytest.approx(1.0)
    assert cosine.rate_at(55) == pytest.approx(0.5)
    assert small(100, warmup=0, rate=1.0, schedule=Schedule.CONSTANT).rate_at(99) == 1.0
    tail = small(100, warmup=0, rate=1.0, schedule=Schedule.TAIL, tail=0.2)
    assert [tail.rate_at(step) for step in (0, 80, 90, 99)] == pytest.approx([1.0, 1.0, 0.5, 0.05])


@pytest.mark.parametrize("masks", Masks)
def test_every_way_to_draw_masks_estimates_the_same_loss(masks):
    """Of a function of the masked set that no symmetry hides: here 1 at the first position alone."""
    trainer = Trainer(small(1, masks=masks, batch=128), Execution())
    torch.manual_seed(0)
    found, numbers = [], torch.zeros(10)
    for _ in range(200):
        masked, p = trainer.draw_masks(torch.Size((2, 128, 9)))
        alone = masked[..., 0] & (masked.sum(-1) == 4)
        found.append(float((alone / p.squeeze(-1)).mean()))
        numbers += torch.bincount(masked.sum(-1).flatten(), minlength=10)
    # Four masks come with 1/9, hit the first position with 4/9, and count 9/4.
    assert sum(found) / len(found) == pytest.approx(1 / 9, rel=0.05)
    if masks.shares is not None:
        assert sum(masks.shares) == pytest.approx(1)
        assert (numbers[1:] / numbers.sum()).tolist() == pytest.approx(masks.shares, abs=0.01)
        by_batch = masked.sum(-1).float().mean(1)
        assert float(by_batch[0] - by_batch[1]) == pytest.approx(0, abs=0.15), "numbers are spread over the batch"


def test_a_killed_run_ends_with_the_same_weights(tmp_path):
    recipe, execution = small(12, variants=(Variant(1, dropout=0.1), Variant(2))), Execution(checkpoint_every=4)
    list(train(recipe, tmp_path / "whole", execution))
    for progress in train(recipe, tmp_path / "killed", execution):
        if progress.step >= 10:
            break
    assert not storage.is_finished(tmp_path / "killed")
    resumed = list(train(recipe, tmp_path / "killed", execution))
    assert resumed[0].step > 8
    whole, killed = (storage.load_run(tmp_path / name).network.state_dict() for name in ("whole", "killed"))
    assert all(torch.equal(whole[name], killed[name]) for name in whole)
    assert list(train(recipe, tmp_path / "whole", execution)) == []


def test_a_run_directory_of_another_configuration_is_refused(tmp_path):
    list(train(small(4), tmp_path / "run", Execution()))
    for other, names in (
        (small(4, batch=8), "batch"),
        (small(4, variants=replicate(small(4).variants[0], 3)), "models"),
        (small(4, variants=(Variant(7, dropout=0.5),) * small(4).n_models), "seed, dropout"),
        (dataclasses.replace(small(4), shape=Shape(n_layers=3, width=16, n_heads=2)), "layers"),
    ):
        with pytest.raises(DapdError, match=rf"another configuration \(it differs in {names}\): give another folder"):
            list(train(other, tmp_path / "run", Execution()))
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "file").write_text("")
    with pytest.raises(DapdError, match="not empty"):
        list(train(small(4), tmp_path / "foreign", Execution()))


def test_whoever_interrupts_a_training_is_told_how_it_goes_on(tmp_path, monkeypatch):
    def interrupted(recipe, folder, execution):
        for progress in train(small(12), folder, Execution(checkpoint_every=execution.checkpoint_every)):
            if progress.step >= 10:
                raise KeyboardInterrupt
            yield progress

    monkeypatch.setattr("dapd.cli.mrf.train", interrupted)
    for every, told in ((100, "no checkpoint yet (one is written every 100 steps)"), (4, "from the last checkpoint")):
        out = str(tmp_path / str(every))
        result = CliRunner().invoke(app, ["train", "--checkpoint-every", str(every), "--out", out, "--device", "cpu"])
        assert result.exit_code == 130
        assert told in result.stderr


def test_weights_of_another_shape_are_refused(tmp_path):
    list(train(small(4), tmp_path / "run", Execution()))
    values = json.loads((tmp_path / "run" / "recipe.json").read_text())
    values["shape"]["width"] = 32
    (tmp_path / "run" / "recipe.json").write_text(json.dumps(values))
    with pytest.raises(DapdError, match="another shape"):
        storage.load_run(tmp_path / "run")
    values["depth"] = 3
    (tmp_path / "run" / "recipe.json").write_text(json.dumps(values))
    with pytest.raises(DapdError, match="not a toy recipe"):
        storage.load_run(tmp_path / "run")


def test_weights_survive_sharding_and_half_precision(tmp_path, monkeypatch):
    trainer = Trainer(small(1, variants=replicate(Variant(), 5)), Execution())
    weights = trainer.weights(mean=False)
    monkeypatch.setattr(storage, "SHARD_BYTES", 2 * sum(w[:2].numel() for w in weights.values()))
    paths = storage.save_weights(tmp_path, weights, torch.float16)
    assert len(paths) == 3
    (tmp_path / "recipe.json").write_text(json.dumps(to_json(trainer.recipe)))
    loaded = storage.load_run(tmp_path).network
    torch.testing.assert_close(loaded.block.qkv, weights["block.qkv"], atol=1e-3, rtol=1e-3)
    assert storage.load_run(tmp_path, n_models=2).network.n_models == 2
    paths[1].unlink()
    with pytest.raises(DapdError, match="another shape"):
        storage.load_run(tmp_path)


def test_recipes_go_through_json():
    recipe = small(7, schedule=Schedule.TAIL, masks=Masks.EVEN, variants=(Variant(1, 10, 0.1), Variant(2)))
    assert from_json(json.loads(json.dumps(to_json(recipe)))) == recipe


@pytest.mark.parametrize(
    ("values", "message"), [({"batch": 0}, "at least 1"), ({"ema": 1.0}, "below 1"), ({"tail": 0.0}, "tail")]
)
def test_impossible_recipes_are_refused(values, message):
    with pytest.raises(DapdError, match=message):
        small(**values)


def test_no_gpu_is_a_sentence():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(DapdError, match="no GPU"):
        Execution(device="cuda")


def test_the_sweep_stops_in_time_and_keeps_what_it_has(tmp_path, monkeypatch):
    from dapd.mrf import sweep as module
    from dapd.mrf.evaluate import Budget

    stacks = tuple(module.Stack(name, small(), ("radd", "plain"), 1) for name in ("one", "two"))
    monkeypatch.setattr(module, "STACKS", stacks)
    options = SweepOptions(steps=20, minutes=1, keep=("one",), budget=Budget(n_paths=4, n_samples=10))
    list(sweep(options, tmp_path, Execution()))
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert set(summary["stacks"]) == {"one", "two"}
    cell = summary["stacks"]["two"]["cells"]["plain, last weights"]
    assert set(cell["selections"]) == {"last 2", "last 1", "all", "first 2", "first 1"}
    assert storage.load_run(tmp_path / "one").network.n_models == 2
    list(sweep(SweepOptions(steps=200, minutes=0.167, keep=()), tmp_path, Execution(report_every=10)))
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert all("skipped" in stack for stack in summary["stacks"].values())
    with pytest.raises(DapdError, match="no stack"):
        SweepOptions(only=("three",))


def test_masks_are_what_the_network_sees():
    """The network is given masks where the loss counts, and nowhere else."""
    trainer = Trainer(small(1), Execution())
    seen = []
    forward = trainer.network.forward
    trainer.network.forward = lambda tokens, **rest: (seen.append(tokens), forward(tokens, **rest))[1]
    trainer.one_step()
    share = float((seen[0] == MASK_ID).float().mean())
    assert 0.2 < share < 0.8


def test_training_from_the_command_line(tmp_path):
    flags = ["--models", "1", "--width", "16", "--heads", "2", "--layers", "2", "--batch", "8", "--steps", "10"]
    result = CliRunner().invoke(app, ["train", "--out", str(tmp_path / "run"), "--device", "cpu", *flags])
    assert result.exit_code == 0, result.output
    assert "left" in result.output
    assert storage.load_run(tmp_path / "run").recipe.steps == 10
    again = CliRunner().invoke(app, ["train", "--out", str(tmp_path / "run"), "--device", "cpu", *flags[:-1], "11"])
    assert isinstance(again.exception, DapdError)


def test_the_defaults_of_the_command_are_the_reported_recipe(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("dapd.cli.mrf.train", lambda recipe, *_: seen.append(recipe) or iter(()))
    result = CliRunner().invoke(app, ["train", "--out", str(tmp_path / "run"), "--device", "cpu"])
    assert result.exit_code == 0, result.output
    assert seen == [chosen()]
    assert storage.load_run(storage.SHIPPED).recipe == chosen(1)


@pytest.mark.parametrize("damage", [b"", b"nonsense", None, {"step": 3}, {"parameters": 5, "recipe": {}}, [1]])
def test_a_damaged_checkpoint_is_one_line(tmp_path, damage):
    steps = train(small(), tmp_path, Execution(checkpoint_every=6))
    next(report for report in steps if report.step > 6)
    steps.close()
    path = tmp_path / "checkpoint.pt"
    if damage is None:
        path.write_bytes(path.read_bytes()[:-200])
    elif isinstance(damage, bytes):
        path.write_bytes(damage)
    else:
        torch.save(damage, path)
    before = path.read_bytes()
    with pytest.raises(DapdError, match=r"checkpoint\.pt is damaged .*delete it"):
        list(train(small(), tmp_path, Execution(checkpoint_every=6)))
    assert path.read_bytes() == before


def test_a_second_training_in_a_folder_is_refused(tmp_path):
    first = train(small(), tmp_path, Execution())
    next(first)
    with pytest.raises(DapdError, match="another process is at work"):
        next(train(small(), tmp_path, Execution()))
    list(first)
    assert storage.is_finished(tmp_path)
    assert list(train(small(), tmp_path, Execution())) == []
