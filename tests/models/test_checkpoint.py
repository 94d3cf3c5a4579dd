"""Checkpoints with the real tensor names: what loads, what is refused and with which words."""

from __future__ import annotations

import json
import time

import pytest
import torch
from safetensors.torch import save_file

from dapd.errors import DapdError
from dapd.models import is_masked_lm, load_network
from dapd.models.transformer import unfused
from helpers_models import CONFIGS, DREAM, LLADA, build, full, hf_forward, hf_twin, parts, tokens, write_checkpoint


def refuses(folder, *words, **kwargs):
    """Loading fails as a user's mistake, and the message has all these words."""
    with pytest.raises(DapdError) as caught:
        load_network(folder, **kwargs)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("shards", [1, 2])
def test_loads_with_the_same_logits(tmp_path, name, shards):
    network = build(CONFIGS[name])
    loaded = load_network(write_checkpoint(tmp_path, network, shards=shards))
    assert loaded.config == network.config
    ids = tokens(2, 9)
    assert torch.equal(full(loaded, ids).logits, full(network, ids).logits)
    assert not any(weight.requires_grad for weight in loaded.parameters())


@pytest.mark.parametrize("name", CONFIGS)
def test_fused_projections_are_filled_through_views(name):
    network = build(CONFIGS[name])
    ours, theirs = unfused(network.config, dict(network.named_parameters())), parts(network)
    assert list(ours) == list(theirs)
    for part, tensor in ours.items():
        assert torch.equal(tensor, theirs[part])
        assert tensor.data_ptr() == theirs[part].data_ptr()
        assert tensor.is_contiguous()


def test_two_shards_hold_half_of_the_tensors_each(tmp_path):
    """The test above would be empty if one shard held everything; the logits agree with Hugging Face's, too."""
    network = build(LLADA)
    folder = write_checkpoint(tmp_path, network, shards=2)
    assert sorted(f.name for f in folder.glob("*.safetensors")) == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    assert len(index) == 9 * 4 + 3
    assert {"model.transformer.wte.weight", "model.transformer.blocks.3.ff_out.weight"} < set(index)
    want = hf_forward(hf_twin(network), tokens(1, 9)).logits
    torch.testing.assert_close(full(load_network(folder), tokens(1, 9)).logits, want, rtol=0, atol=1e-4)


@pytest.mark.parametrize("config", [LLADA, DREAM], ids=["llada", "dream"])
def test_bf16(tmp_path, config):
    network = build(config).bfloat16()
    folder = write_checkpoint(tmp_path, network)
    narrow, wide = load_network(folder, dtype=torch.bfloat16), load_network(folder)
    assert {p.dtype for p in narrow.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in wide.parameters()} == {torch.float32}  # on a CPU
    ids = tokens(1, 9)
    assert torch.equal(full(narrow, ids).logits, full(network, ids).logits)
    assert torch.equal(full(wide, ids).logits, full(network.float(), ids).logits)


def test_tied_head_written_out_a_second_time(tmp_path):
    network = build(CONFIGS["dream-tied"])

    def add_head(state):
        state["lm_head.weight"] = state["model.embed_tokens.weight"].clone()

    loaded = load_network(write_checkpoint(tmp_path, network, change=add_head))
    assert loaded.head.weight is loaded.embed.weight
    assert torch.equal(full(loaded, tokens(1, 6)).logits, full(network, tokens(1, 6)).logits)


def test_another_head_where_the_config_says_that_there_is_none(tmp_path):
    def add_head(state):
        state["lm_head.weight"] = state["model.embed_tokens.weight"] + 1

    folder = write_checkpoint(tmp_path, build(CONFIGS["dream-tied"]), change=add_head, shards=2)
    refuses(folder, "lm_head.weight holds something else", "tie_word_embeddings")


@pytest.mark.parametrize("shards", [1, 2])
def test_missing_tensors_are_named(tmp_path, shards):
    def spoil(state):
        del state["model.transformer.ff_out.weight"], state["model.transformer.blocks.2.up_proj.weight"]

    folder = write_checkpoint(tmp_path, build(LLADA), shards=shards, change=spoil)
    refuses(folder, "missing", "model.transformer.ff_out.weight", "model.transformer.blocks.2.up_proj.weight")


def test_many_missing_tensors_are_counted(tmp_path):
    folder = write_checkpoint(tmp_path, build(LLADA), config={"n_layers": 6})
    refuses(folder, "missing", "model.transformer.blocks.4.attn_norm.weight", "13 more")


def test_unknown_tensors_are_named(tmp_path):
    def spoil(state):
        state["model.layers.0.self_attn.q_norm.weight"] = torch.ones(8)

    refuses(write_checkpoint(tmp_path, build(DREAM), change=spoil), "unknown", "model.layers.0.self_attn.q_norm.weight")


def test_an_unexpected_bias_is_named(tmp_path):
    def spoil(state):
        state["model.transformer.blocks.0.q_proj.bias"] = torch.ones(32)

    refuses(write_checkpoint(tmp_path, build(LLADA), change=spoil), "model.transformer.blocks.0.q_proj.bias")


def test_misshapen_tensors_are_named_with_both_shapes(tmp_path):
    def spoil(state):
        name = "model.layers.1.mlp.down_proj.weight"
        state[name] = state[name].T.contiguous()

    folder = write_checkpoint(tmp_path, build(DREAM), change=spoil)
    refuses(folder, "model.layers.1.mlp.down_proj.weight", "[48, 32]", "[32, 48]")


def test_a_tensor_in_two_shards_is_refused(tmp_path):
    network = build(LLADA)
    folder = write_checkpoint(tmp_path, network, shards=2)
    second = folder / "model-00002-of-00002.safetensors"
    first = folder / "model-00001-of-00002.safetensors"
    second.write_bytes(first.read_bytes())
    refuses(folder, "more than one file")


@pytest.mark.parametrize("keep", [0, 4, 500, -1])
def test_truncated_file(tmp_path, keep):
    folder = write_checkpoint(tmp_path, build(LLADA))
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    refuses(folder, "model.safetensors", "truncated")


def test_a_clone_without_the_large_files(tmp_path):
    folder = write_checkpoint(tmp_path, build(LLADA))
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 12345\n")
    refuses(folder, "model.safetensors is a pointer of Git LFS", "git lfs pull")


def test_truncated_shard_is_named(tmp_path):
    folder = write_checkpoint(tmp_path, build(DREAM), shards=2)
    file = folder / "model-00002-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    refuses(folder, "model-00002-of-00002.safetensors", "truncated")


def test_missing_shard_is_named(tmp_path):
    folder = write_checkpoint(tmp_path, build(DREAM), shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    refuses(folder, "model-00002-of-00002.safetensors")


ODD_TYPES = [torch.int8, torch.int64, torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("dtype", ODD_TYPES, ids=str)
def test_weights_of_a_type_that_no_weight_has_are_refused(tmp_path, dtype):
    """To copy them would be a cast, and the model would decode with numbers that mean something else."""
    name = "model.transformer.blocks.1.q_proj.weight"

    def spoil(state):
        state[name] = (state[name] * 50).to(dtype)

    refuses(write_checkpoint(tmp_path, build(LLADA), change=spoil), name, "quantised", "BF16")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_floats_of_other_widths_are_weights(tmp_path, dtype):
    def change(state):
        state.update({name: tensor.to(dtype) for name, tensor in state.items()})

    assert load_network(write_checkpoint(tmp_path, build(LLADA), change=change)).dtype == torch.float32


ELSEWHERE = ["../model-00002-of-00002.safetensors", "/etc/x.safetensors", "sub/x.safetensors", "a\\b.safetensors"]
NO_SHARDS = ["..", "", "config.json", 5, None, ["x.safetensors"], {"x": 1}]


@pytest.mark.parametrize("name", [*ELSEWHERE, *NO_SHARDS], ids=str)
def test_an_index_leads_nowhere_else(tmp_path, name):
    """Not even to a file that is there and would fit."""
    folder = write_checkpoint(tmp_path / "in", build(DREAM), shards=2)
    shard = folder / "model-00002-of-00002.safetensors"
    (tmp_path / shard.name).write_bytes(shard.read_bytes())
    (folder / "sub").mkdir()
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"] = {k: name if v == shard.name else v for k, v in index["weight_map"].items()}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refuses(folder, "model.safetensors.index.json", repr(name), "same folder")


@pytest.mark.parametrize(("config", "key"), [(LLADA, "n_layers"), (DREAM, "num_hidden_layers")])
def test_a_hundred_thousand_layers_are_refused_at_once(tmp_path, config, key):
    folder = write_checkpoint(tmp_path, build(config), config={key: 100_000})
    began = time.monotonic()
    refuses(folder, "100000 layers", "39 tensors" if config is LLADA else "51 tensors")
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("changes", [{"vocab_size": 2**45, "embedding_size": 2**45}, {"mlp_hidden_size": 2**45}])
def test_sizes_that_no_machine_holds_are_refused_before_memory_is_taken(tmp_path, changes):
    refuses(write_checkpoint(tmp_path, build(LLADA), config=changes), str(2**45), "the config asks for")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0, -1.0, "1e4", True, None])
@pytest.mark.parametrize(("config", "key"), [(LLADA, "rope_theta"), (DREAM, "rope_theta"), (LLADA, "rms_norm_eps")])
def test_numbers_that_no_arithmetic_can_be_done_with(tmp_path, config, key, value):
    refuses(write_checkpoint(tmp_path, build(config), config={key: value}), key, repr(value), "finite")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_json_that_is_nested_without_end(tmp_path, name):
    folder = write_checkpoint(tmp_path, build(DREAM), shards=2)
    (folder / name).write_text('{"weight_map": ' + "[" * 100_000)
    refuses(folder, name, "not valid JSON")


@pytest.mark.parametrize("names", ["LLaDAModelLM", [3], {"a": 1}], ids=str)
def test_architectures_of_an_odd_type(tmp_path, names):
    folder = write_checkpoint(tmp_path, build(LLADA), config={"architectures": names})
    refuses(folder, "architectures", "list of names")
    with pytest.raises(DapdError, match="list of names"):
        is_masked_lm(folder)


@pytest.mark.parametrize(("names", "advice"), [(None, '"architectures": ["BertForMaskedLM"]'), (["BertModel"], "head")])
def test_a_config_that_does_not_say_what_it_is_of(tmp_path, names, advice):
    folder = write_checkpoint(tmp_path, build(LLADA), config={"architectures": names, "model_type": "bert"})
    refuses(folder, "BertForMaskedLM", advice)


@pytest.mark.parametrize("text", ["{", "[1, 2]", '{"metadata": {}}', '{"weight_map": [1]}', '{"weight_map": {}}'])
def test_broken_index(tmp_path, text):
    folder = write_checkpoint(tmp_path, build(DREAM), shards=2)
    (folder / "model.safetensors.index.json").write_text(text)
    refuses(folder, "model.safetensors.index.json")


def test_two_files_without_an_index(tmp_path):
    folder = write_checkpoint(tmp_path, build(DREAM), shards=2)
    (folder / "model.safetensors.index.json").unlink()
    refuses(folder, "2 safetensors files", "model.safetensors.index.json")


@pytest.mark.parametrize("config", [LLADA, DREAM], ids=["llada", "dream"])
def test_two_sets_of_weights(tmp_path, config):
    """transformers takes the one file, and the index leads to others."""
    folder = write_checkpoint(write_checkpoint(tmp_path, build(config, seed=1)), build(config), shards=2)
    refuses(folder, "both model.safetensors and model.safetensors.index.json")


@pytest.mark.parametrize("config", [LLADA, DREAM], ids=["llada", "dream"])
def test_an_adapter_beside_the_weights(tmp_path, config):
    """transformers adds it to them."""
    folder = write_checkpoint(tmp_path, build(config), shards=2)
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    refuses(folder, "adapter", "merge it")


def test_pickle_only(tmp_path):
    folder = write_checkpoint(tmp_path, build(LLADA))
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    refuses(folder, "pickle", "pytorch_model.bin", "safetensors")


def test_no_weights_at_all(tmp_path):
    folder = write_checkpoint(tmp_path, build(LLADA))
    (folder / "model.safetensors").unlink()
    refuses(folder, "no safetensors")


def test_no_config(tmp_path):
    save_file({"x": torch.ones(1)}, tmp_path / "model.safetensors")
    refuses(tmp_path, "config.json", str(tmp_path))


@pytest.mark.parametrize("text", ["", "{", "[]", "\udcff"])
def test_config_is_not_a_json_object(tmp_path, text):
    (tmp_path / "config.json").write_bytes(text.encode(errors="surrogateescape"))
    refuses(tmp_path, "config.json", "JSON")


@pytest.mark.parametrize("names", [["LlamaForCausalLM"], ["DreamForCausalLM"], [], None], ids=str)
def test_unsupported_architecture(tmp_path, names):
    """DreamReasoner shares Dream's model_type and is something else: dispatch is on the architecture."""
    folder = write_checkpoint(tmp_path, build(DREAM), config={"architectures": names})
    refuses(folder, *(names or ["none given"]), "LLaDAModelLM", "DreamModel")


@pytest.mark.parametrize(
    ("config", "key", "value"),
    [
        (LLADA, "block_type", "sequential"),
        (LLADA, "layer_norm_type", "default"),
        (LLADA, "activation_type", "gelu"),
        (LLADA, "rope", False),
        (LLADA, "alibi", True),
        (LLADA, "attention_layer_norm", True),
        (LLADA, "include_bias", True),
        (LLADA, "bias_for_layer_norm", True),
        (LLADA, "scale_logits", True),
        (LLADA, "input_emb_norm", True),
        (LLADA, "block_group_size", 2),
        (DREAM, "hidden_act", "gelu"),
        (DREAM, "rope_scaling", {"rope_type": "yarn", "factor": 4.0}),
        (DREAM, "rope_parameters", {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}),
        (LLADA, "rope_parameters", "default"),
        (LLADA, "rope_scaling", {"rope_type": "linear", "factor": 4.0}),
        (DREAM, "rope_scaling", {"factor": 4.0}),
        (LLADA, "rope_parameters", {"type": "dynamic", "factor": 4.0}),
        (DREAM, "use_sliding_window", True),
        (DREAM, "use_mrope", True),
    ],
)
def test_unsupported_arithmetic_is_refused(tmp_path, config, key, value):
    refuses(write_checkpoint(tmp_path, build(config), config={key: value}), key, repr(value))


def test_two_bases_of_the_rotations_must_agree(tmp_path):
    folder = write_checkpoint(tmp_path, build(DREAM), config={"rope_parameters": {"rope_theta": 3.0}})
    refuses(folder, "several values of rope_theta", "3.0")
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | {"rope_theta": None}))
    assert load_network(folder).config.rope_theta == 3.0


@pytest.mark.parametrize("config", [LLADA, DREAM])
def test_rotations_as_newer_versions_of_transformers_write_them(tmp_path, config):
    network = build(config)
    folder = write_checkpoint(tmp_path, network)
    content = json.loads((folder / "config.json").read_text())
    content["rope_parameters"] = {
        "rope_theta": content.pop("rope_theta"),
        "rope_type": "default",
        "partial_rotary_factor": 1.0,
    }
    (folder / "config.json").write_text(json.dumps(content))
    assert load_network(folder).config == network.config


@pytest.mark.parametrize(
    ("config", "key"),
    [(LLADA, "n_layers"), (LLADA, "max_sequence_length"), (DREAM, "hidden_size"), (DREAM, "eos_token_id")],
)
def test_missing_config_entry_is_named(tmp_path, config, key):
    folder = write_checkpoint(tmp_path, build(config))
    content = json.loads((folder / "config.json").read_text())
    del content[key]
    (folder / "config.json").write_text(json.dumps(content))
    refuses(folder, key)


@pytest.mark.parametrize(
    ("key", "value"),
    [("n_layers", "four"), ("d_model", None), ("eos_token_id", [1, 2]), ("mask_token_id", "<mask>")],
)
def test_config_entries_of_the_wrong_type(tmp_path, key, value):
    refuses(write_checkpoint(tmp_path, build(LLADA), config={key: value}), key.removesuffix("_token_id"))


@pytest.mark.parametrize("key", ["eos_token_id", "pad_token_id"])
@pytest.mark.parametrize("config", [LLADA, DREAM], ids=["llada", "dream"])
def test_special_ids_that_are_null_are_refused(tmp_path, config, key):
    """They would be found out in the middle of a generation."""
    refuses(write_checkpoint(tmp_path, build(config), config={key: None}), key.removesuffix("_token_id"))


@pytest.mark.parametrize("config", [LLADA, DREAM], ids=["llada", "dream"])
def test_mask_id_is_never_guessed(tmp_path, config):
    folder = write_checkpoint(tmp_path, build(config), config={"mask_token_id": None})
    refuses(folder, "mask")
    assert load_network(folder, mask_id=7).profile.mask_id == 7


@pytest.mark.parametrize("config", [LLADA, DREAM], ids=["llada", "dream"])
@pytest.mark.parametrize("mask_id", [61, 126336, -1])
def test_mask_id_out_of_range(tmp_path, config, mask_id):
    words = ("mask_id", str(mask_id), "0..60")
    refuses(write_checkpoint(tmp_path / "a", build(config), config={"mask_token_id": mask_id}), *words)
    refuses(write_checkpoint(tmp_path / "b", build(config)), *words, mask_id=mask_id)


def test_mask_id_equal_to_eos(tmp_path):
    refuses(write_checkpoint(tmp_path, build(LLADA), config={"mask_token_id": 58}), "mask_id", "eos_id", "58")


def test_head_counts_that_do_not_fit(tmp_path):
    refuses(write_checkpoint(tmp_path, build(LLADA), config={"n_kv_heads": 3}), "key-value heads")


def test_multi_query_attention(tmp_path):
    folder = write_checkpoint(tmp_path, build(LLADA), config={"n_kv_heads": None, "multi_query_attention": True})
    refuses(folder, "blocks.0.k_proj.weight", "[32, 32]", "[8, 32]")
