"""The released checkpoints' own configs and weight indexes."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from dapd.models import ARCHITECTURES, SHAPES, Profile, Transformer
from dapd.models.transformer import unfused
from helpers_models import DATA

FOLDERS = {"llada_instruct": "llada-8b", "dream_instruct": "dream-7b"}


@pytest.fixture(params=FOLDERS)
def released(request):
    folder = DATA / request.param
    if not folder.is_dir():
        pytest.skip(f"the released configs are not at {folder}")
    config = json.loads((folder / "config.json").read_text())
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    architecture = ARCHITECTURES[config["architectures"][0]]
    return FOLDERS[request.param], architecture, architecture.parse(config, None), index


def test_exactly_the_tensors_of_the_index(released):
    _, architecture, config, index = released
    with torch.device("meta"):
        weights = unfused(config, dict(Transformer(config).named_parameters()))
    names = [architecture.names.of(name) for name in weights]
    assert len(set(names)) == len(names)
    assert set(names) == set(index["weight_map"])
    assert sum(2 * weight.numel() for weight in weights.values()) == index["metadata"]["total_size"]


def test_the_named_shape_is_the_checkpoints(released):
    shape, _, config, _ = released
    ours = SHAPES[shape]
    # LLaDA's config does not give its BOS.
    assert dataclasses.replace(ours, profile=dataclasses.replace(ours.profile, bos_id=config.profile.bos_id)) == config


def test_special_ids(released):
    shape, _, config, _ = released
    want = {
        "llada-8b": Profile(mask_id=126336, eos_id=126081, pad_id=126081, eot_id=126348),
        "dream-7b": Profile(mask_id=151666, eos_id=151643, pad_id=151643, eot_id=151645, bos_id=151643),
    }
    assert config.profile == want[shape]
    assert config.lookback == (shape == "dream-7b")
