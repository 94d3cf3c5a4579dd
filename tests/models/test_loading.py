"""Models by name: folders, hub ids, random shapes; the configuration's own checks."""

from __future__ import annotations

import dataclasses
import json
import sys
from fnmatch import fnmatch

import huggingface_hub
import pytest
import torch

import dapd
from dapd.errors import DapdError
from dapd.models import Profile, load_network, random, resolve
from dapd.models.devices import pick_device
from helpers_models import CONFIGS, DREAM, LLADA, build, full, tokens, write_checkpoint


def test_random_is_reproducible():
    same, other = random(LLADA, seed=3), random(LLADA, seed=4)
    assert torch.equal(random(LLADA, seed=3).head.weight, same.head.weight)
    assert not torch.equal(other.head.weight, same.head.weight)


@pytest.mark.parametrize("name", CONFIGS)
def test_random_predicts_finite_logits(name):
    logits = full(random(CONFIGS[name]), tokens(2, 5)).logits
    assert logits.shape == (2, 5, 61)
    assert logits.isfinite().all()


def test_the_filler_of_diffucoder_ends_a_text(tmp_path):
    """Its config names Dream's EOS, but what fills the canvas after a text is a token of its tokenizer."""
    folder = write_checkpoint(tmp_path, build(DREAM))
    added = {"9": {"content": "<|mask|>"}, "11": {"content": "<|dlm_pad|>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": {"9": added["9"]}}))
    assert load_network(folder).profile.eos_id == DREAM.profile.eos_id != 11
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    assert load_network(folder).profile == dataclasses.replace(DREAM.profile, eos_id=11)


def test_random_tied_head_is_the_embedding():
    network = random(CONFIGS["llada-tied"])
    assert network.head.weight is network.embed.weight


def test_sharpness_scales_the_logits_and_spreads_the_confidences():
    ids = tokens(4, 20)
    plain, sharp = full(random(LLADA), ids).logits, full(random(LLADA, sharpness=8.0), ids).logits
    torch.testing.assert_close(sharp, 8 * plain, rtol=1e-4, atol=1e-4)
    confidence = sharp.softmax(-1).amax(-1)
    assert confidence.min() < 0.5 < 0.9 < confidence.max()


def test_random_in_bf16():
    assert {p.dtype for p in random(DREAM, dtype=torch.bfloat16).parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("shape", ["tiny-llada", "tiny-dream"])
def test_tiny_shapes(shape):
    network = random(shape)
    assert network.lookback == (shape == "tiny-dream")
    assert network.profile.mask_id == 257


def test_unknown_shape_names_the_nearest():
    with pytest.raises(DapdError, match="did you mean 'tiny-llada'"):
        random("tiny-lada")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_layers": 0}, "n_layers is 0"),
        ({"n_heads": 5}, "5 heads"),
        ({"d_model": 36, "n_heads": 4, "n_kv_heads": 4}, "width 36 over 4 heads must give an even"),
        ({"n_kv_heads": 3}, "key-value heads"),
        ({"max_length": 0}, "max_length"),
        ({"profile": Profile(mask_id=61, eos_id=1, pad_id=1)}, "mask_id is 61"),
        ({"profile": Profile(mask_id=2, eos_id=1, pad_id=1, eot_id=99)}, "eot_id is 99"),
    ],
)
def test_impossible_configurations(changes, words):
    with pytest.raises(DapdError, match=words):
        dataclasses.replace(LLADA, **changes)


def test_resolve_takes_a_folder_as_it_is(tmp_path):
    assert resolve(tmp_path) == resolve(str(tmp_path)) == tmp_path


def test_resolve_refuses_a_file(tmp_path):
    file = tmp_path / "model.safetensors"
    file.touch()
    with pytest.raises(DapdError, match="is a file"):
        resolve(file)


@pytest.mark.parametrize("name", ["nowhere", "./no/such/folder", "/no/such/folder", "a//b"])
def test_unknown_model(name, no_hub):
    with pytest.raises(DapdError, match="unknown model") as caught:
        resolve(name)
    assert repr(name) in str(caught.value)
    assert "tiny-llada" in str(caught.value)
    assert no_hub == []


@pytest.fixture
def no_hub(monkeypatch):
    """A hub that cannot be reached, and what was asked of it."""
    asked = []

    def snapshot_download(repo_id, **kwargs):
        asked.append((repo_id, kwargs))
        raise OSError("no route to host\nsecond line")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return asked


@pytest.mark.parametrize("name", ["Dream-v0-Instruct-7B", "Dream-org/Dream-v0-Instuct-7B"])
def test_unknown_model_names_the_nearest(name, no_hub):
    with pytest.raises(DapdError, match="Dream-org/Dream-v0-Instruct-7B"):
        resolve(name)


def test_hub_failure_is_one_sentence(no_hub):
    with pytest.raises(DapdError, match=r"cannot get some/model .*no route to host$"):
        resolve("some/model")


def test_hub_ids_are_downloaded_without_code_or_pickles(monkeypatch, tmp_path):
    asked = {}

    def snapshot_download(repo_id, **kwargs):
        asked.update(kwargs, repo_id=repo_id)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert resolve("GSAI-ML/LLaDA-1.5", revision="abc") == tmp_path
    assert (asked["repo_id"], asked["revision"]) == ("GSAI-ML/LLaDA-1.5", "abc")
    assert not any(p.endswith((".py", ".bin")) or p == "*" for p in asked["allow_patterns"])
    files = ("model.safetensors", "tokenizer.json", "merges.txt", "spiece.model", "chat_template.jinja")
    assert all(any(fnmatch(name, pattern) for pattern in asked["allow_patterns"]) for name in files)


def test_hub_package_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DapdError, match=r"pip install 'dapd\[hub\]'"):
        resolve("some/model")


def test_load_from_the_top_level(tmp_path):
    network = build(DREAM)
    model = dapd.load(write_checkpoint(tmp_path, network), device="cpu")
    ids = tokens(1, 7)
    assert torch.equal(full(model.network, ids).logits, full(network, ids).logits)
    assert model.name == str(tmp_path)


def test_load_passes_dtype_and_mask_id_on(tmp_path):
    folder = write_checkpoint(tmp_path, build(LLADA), config={"mask_token_id": None})
    model = dapd.load(folder, device="cpu", dtype=torch.bfloat16, mask_id=9)
    assert (model.network.dtype, model.network.profile.mask_id) == (torch.bfloat16, 9)


def test_load_random():
    model = dapd.load("random:tiny-dream", device="cpu")
    assert model.network.lookback == 1
    assert model.tokenizer.encode("hi") == [104, 105]
    with pytest.raises(DapdError, match="did you mean 'tiny-dream'"):
        dapd.load("random:tiny-drem", device="cpu")


def test_a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert pick_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(DapdError, match="there are 2 GPUs here, counted from cuda:0"):
        pick_device("cuda:2")


def test_config_alone_decides_the_profile(tmp_path):
    """No id of one model leaks into another with a different vocabulary."""
    changes = {"mask_token_id": 3, "eos_token_id": 4, "pad_token_id": 5, "eot_token_id": 6, "bos_token_id": 7}
    network = load_network(write_checkpoint(tmp_path, build(LLADA), config=changes))
    assert network.profile == Profile(mask_id=3, eos_id=4, pad_id=5, eot_id=6, bos_id=7)


def test_the_lab_model_is_found_or_said_to_be_missing(monkeypatch, tmp_path):
    monkeypatch.setattr("dapd.models.loading.LAB", tmp_path)
    with pytest.raises(DapdError, match="missing from this installation"):
        resolve("lab")
    (tmp_path / "config.json").write_text("{}")
    assert resolve("lab") == tmp_path


def test_a_right_name_gets_no_other_one(monkeypatch):
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda *a, **k: (_ for _ in ()).throw(OSError("no network"))
    )
    with pytest.raises(DapdError, match="no network") as error:
        resolve("GSAI-ML/LLaDA-8B-Instruct")
    assert "did you mean" not in str(error.value)
