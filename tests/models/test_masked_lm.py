"""Masked language models of `transformers`: tiny random ones of four families, through the loader and the CLI."""

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from typer.testing import CliRunner

import dapd
from dapd.cli.app import app
from dapd.models.base import Capture, Profile
from dapd.models.masked_lm import HubMaskedLM
from dapd.own_models import load_named

transformers = pytest.importorskip("transformers")

WORDS = ["the", "capital", "of", "france", "is", "paris", "and", "london", "was", "not", "a", "big", "old", "city"]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
SHAPE = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 48}
COMMON = {"vocab_size": len(SPECIAL) + len(WORDS), "pad_token_id": 1, "initializer_range": 0.4, **SHAPE}
FAMILIES = {
    "bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**COMMON)),
    "roberta": lambda: transformers.RobertaForMaskedLM(
        transformers.RobertaConfig(max_position_embeddings=66, bos_token_id=0, eos_token_id=2, **COMMON)
    ),
    "modernbert": lambda: transformers.ModernBertForMaskedLM(
        transformers.ModernBertConfig(
            global_attn_every_n_layers=2, local_attention=4, bos_token_id=0, eos_token_id=2, **COMMON
        )
    ),
    "esm": lambda: transformers.EsmForMaskedLM(
        transformers.EsmConfig(mask_token_id=4, position_embedding_type="rotary", max_position_embeddings=66, **COMMON)
    ),
}


def write_model(family: str, folder: Path, **changes: Any) -> None:
    torch.manual_seed(3)
    model = FAMILIES[family]()
    if changes:
        model = type(model)(type(model.config)(**{**model.config.to_dict(), **changes}))
    model.save_pretrained(folder)
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(SPECIAL + WORDS)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    names = {
        "bos_token": "<s>",
        "pad_token": "<pad>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "mask_token": "<mask>",
    }
    transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **names).save_pretrained(folder)


@pytest.fixture(params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    write_model(request.param, tmp_path)
    return tmp_path


def test_every_strategy_fills_a_template(folder: Path) -> None:
    lm = dapd.load(folder, device="cpu")
    for name in ("original", "fast-dllm", "eb-sampler", "klass", "dapd-staged", "dapd-direct"):
        done = lm.infill("the capital of [MASK] is [MASK*3]", strategy=name)
        assert len(done.ids) == 4
        assert 4 not in done.trace.tokens()
        assert done.trace.canvas[:4] == [0, 5, 6, 7]
        assert done.trace.canvas[-1] == 2


def test_batched_equals_single(folder: Path) -> None:
    lm = dapd.load(folder, device="cpu")
    prompts = ["the capital of france", "paris"]
    together = lm.generate_batch(prompts, strategy="dapd-staged", max_new_tokens=6)
    for prompt, one in zip(prompts, together, strict=True):
        alone = lm.generate(prompt, strategy="dapd-staged", max_new_tokens=6)
        assert [r.positions for r in alone.trace.steps] == [r.positions for r in one.trace.steps]
        assert alone.ids == one.ids


def test_attention_is_the_mean_of_full_layers(folder: Path) -> None:
    lm = dapd.load(folder, device="cpu")
    tokens = torch.tensor([[0, 5, 6, 4, 4, 9, 2]])
    window, everything = slice(3, 5), slice(0, 7)
    got = lm.network(tokens, everything, window, capture=Capture(frozenset({1}), keys="canvas")).attention
    out = lm.network.inner(input_ids=tokens, attention_mask=torch.ones_like(tokens), output_attentions=True)
    layer = lm.network.full_layers[1]
    torch.testing.assert_close(got, out.attentions[layer].mean(1)[:, window])


def test_local_layers_are_left_out(tmp_path: Path) -> None:
    write_model("modernbert", tmp_path)
    network = dapd.load(tmp_path, device="cpu").network
    assert network.full_layers == [0, 2]
    assert network.n_layers == 2


def test_a_model_in_memory_is_one_of_the_users_own(folder: Path) -> None:
    """A function that returns a model of transformers and its tokenizer gives what their folder gives."""
    file = folder / "own.py"
    file.write_text(
        "from transformers import AutoModelForMaskedLM, AutoTokenizer\n"
        f"folder = {str(folder)!r}\n"
        "def alone():\n    return AutoModelForMaskedLM.from_pretrained(folder)\n"
        "def pair():\n    return alone(), AutoTokenizer.from_pretrained(folder)\n",
        encoding="utf-8",
    )
    template = "the capital of [MASK] is [MASK*3]"
    given = load_named(f"{file}:pair", device="cpu").infill(template)
    assert given.ids == dapd.load(folder, device="cpu").infill(template).ids
    assert given.trace.steps[0].positions
    with pytest.raises(dapd.DapdError, match="alone; return it and its tokenizer, as a pair"):
        load_named(f"{file}:alone")


def test_infilling_through_the_command_line(folder: Path) -> None:
    result = CliRunner().invoke(app, ["generate", "-m", str(folder), "--template", "the [MASK] of [MASK]"])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("the ")


def test_several_templates_through_the_command_line(folder: Path, tmp_path: Path) -> None:
    texts = ["the [MASK] of [MASK]", "paris [MASK*3]"]
    asked = [word for text in texts for word in ("--template", text)]
    result = CliRunner().invoke(app, ["generate", "-m", str(folder), *asked, "--json", "--trace", str(tmp_path / "t")])
    assert result.exit_code == 0, result.output
    said = [json.loads(line) for line in result.stdout.splitlines()]
    lm = dapd.load(folder, device="cpu")
    assert [one["text"] for one in said] == [lm.infill(text).text for text in texts]
    assert [trace.nfe for trace in dapd.read_traces(tmp_path / "t")] == [one["nfe"] for one in said]


def test_reuse_and_length_are_refused_with_a_reason(tmp_path: Path) -> None:
    write_model("bert", tmp_path)
    lm = dapd.load(tmp_path, device="cpu")
    with pytest.raises(dapd.DapdError, match="reuse must be none"):
        lm.generate("the capital", max_new_tokens=4, reuse="prefix")
    with pytest.raises(dapd.DapdError, match="512"):
        lm.generate("the capital", max_new_tokens=600)


def test_a_model_without_mask_token_is_refused(tmp_path: Path) -> None:
    write_model("bert", tmp_path)
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(SPECIAL + WORDS)}, unk_token="<unk>"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>").save_pretrained(tmp_path)
    with pytest.raises(dapd.DapdError, match="no mask token"):
        dapd.load(tmp_path, device="cpu")


def change_json(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**content, **changes}))


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def refuses(folder: Path, *words: str) -> None:
    with pytest.raises(dapd.DapdError) as caught:
        dapd.load(folder, device="cpu")
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


# --- what is not there is not made up ---


def test_missing_tensors_are_named(folder: Path) -> None:
    """transformers fills them with random numbers: three runs, three answers."""
    names = sorted(load_file(folder / "model.safetensors"))
    gone = next(name for name in names if "layer" in name and name.endswith("weight"))
    change_weights(folder, lambda weights: weights.pop(gone))
    refuses(folder, "lacks tensors", gone)


def test_a_checkpoint_without_the_head_is_refused(tmp_path: Path) -> None:
    write_model("bert", tmp_path)

    def behead(weights: dict[str, torch.Tensor]) -> None:
        for name in [name for name in weights if name.startswith("cls.")]:
            del weights[name]

    change_weights(tmp_path, behead)
    refuses(tmp_path, "lacks tensors", "cls.predictions", "head")


def test_what_a_masked_model_does_not_use_may_be_there(tmp_path: Path) -> None:
    write_model("bert", tmp_path)
    before = dapd.load(tmp_path, device="cpu").infill("the capital of [MASK]").ids
    change_weights(tmp_path, lambda w: w.update({"bert.pooler.dense.weight": torch.ones(32, 32)}))
    assert dapd.load(tmp_path, device="cpu").infill("the capital of [MASK]").ids == before


def test_tensors_that_a_layer_has_no_place_for_are_refused(tmp_path: Path) -> None:
    """Relative positions, say, which BERT had in older versions of transformers."""
    write_model("bert", tmp_path / "bert")
    name = "bert.encoder.layer.1.attention.self.distance_embedding.weight"
    change_weights(tmp_path / "bert", lambda w: w.update({name: torch.ones(1023, 16)}))
    refuses(tmp_path / "bert", name, "no place", "BertForMaskedLM")
    write_model("esm", tmp_path / "esm")
    buffer = "esm.encoder.layer.1.attention.self.rotary_embeddings.inv_freq"
    change_weights(tmp_path / "esm", lambda w: w.update({buffer: torch.ones(8)}))
    dapd.load(tmp_path / "esm", device="cpu")


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.complex64, torch.float8_e4m3fn], ids=str)
def test_weights_of_odd_types_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    write_model("bert", tmp_path)
    name = "bert.encoder.layer.0.attention.self.query.weight"
    change_weights(tmp_path, lambda w: w.update({name: (w[name] * 50).to(dtype)}))
    refuses(tmp_path, name, "quantised")


def test_a_folder_without_tokenizer_files_is_refused(tmp_path: Path) -> None:
    """transformers makes up a tokenizer of five tokens, with a mask id that is another token's."""
    write_model("bert", tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    refuses(tmp_path, "has no tokenizer", "vocab.txt")
    (tmp_path / "vocab.json").write_text("{}")  # not what this class reads
    refuses(tmp_path, "tokenizer")


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    write_model("bert", tmp_path, vocab_size=12)
    refuses(tmp_path, "do not belong together", "18")


def test_an_unknown_word_of_a_template_is_refused(folder: Path) -> None:
    """It would become the unknown token, which the text leaves out."""
    lm = dapd.load(folder, device="cpu")
    with pytest.raises(dapd.DapdError, match=r"does not know 'xyzzy': that part of the template would vanish"):
        lm.infill("the xyzzy of [MASK]")
    assert lm.infill("the <unk> of [MASK]").trace.canvas[:4] == [0, 5, 3, 7]


def test_pickles_and_configs_that_say_too_little(tmp_path: Path) -> None:
    write_model("bert", tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    refuses(tmp_path, "pickles only", "pytorch_model.bin", "save_pretrained")
    (tmp_path / "pytorch_model.bin").rename(tmp_path / "model.safetensors")
    change_json(tmp_path / "config.json", architectures=None)
    refuses(tmp_path, '"architectures": ["BertForMaskedLM"]')
    change_json(tmp_path / "config.json", architectures=["BertModel"])
    refuses(tmp_path, "a checkpoint of BertForMaskedLM is needed")


def test_a_class_of_the_checkpoints_own_is_refused(tmp_path: Path) -> None:
    """Its code would be another network: one with sparse attention, say, whose tensors all have a place in a BERT."""
    write_model("bert", tmp_path)
    change_json(tmp_path / "config.json", architectures=["LSGBertForMaskedLM"])
    refuses(tmp_path, "LSGBertForMaskedLM", "transformers makes a BertForMaskedLM of it", "architectures")
    change_json(tmp_path / "config.json", architectures=["LSGBertForMaskedLM", "BertForMaskedLM"])
    dapd.load(tmp_path, device="cpu")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_hidden_layers": 100_000}, "100000 layers"),
        ({"num_hidden_layers": "4"}, "whole number"),
        ({"hidden_size": 2**40}, "cannot be loaded"),
        ({"transformers_weights": "../x.safetensors"}, "transformers_weights"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
    ],
)
def test_hostile_configs(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    write_model("bert", tmp_path)
    change_json(tmp_path / "config.json", **changes)
    began = time.monotonic()
    refuses(tmp_path, words)
    assert time.monotonic() - began < 10


def test_an_index_leads_nowhere_else(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    write_model("bert", folder)
    names = load_file(folder / "model.safetensors")
    shutil.move(folder / "model.safetensors", tmp_path / "model.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "../model.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refuses(folder, "../model.safetensors", "same folder")
    shutil.copy(tmp_path / "model.safetensors", folder)
    refuses(folder, "both")


def test_loading_is_silent(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from transformers.utils import logging

    before = (logging.get_verbosity(), logging.is_progress_bar_enabled())
    dapd.load(folder, device="cpu")
    assert capfd.readouterr() == ("", "")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


# --- no code of a checkpoint runs ---

EVIL = """
import pathlib
pathlib.Path(__file__).with_name("ran").touch()
pathlib.Path({mark!r}).touch()
from transformers import BertConfig as EvilConfig, BertForMaskedLM as EvilForMaskedLM, BertTokenizer as EvilTokenizer
"""


def plant(folder: Path, mark: Path, place: str) -> None:
    """A checkpoint that brings Python of its own for its config, its model or its tokenizer."""
    write_model("bert", folder)
    (folder / "evil.py").write_text(EVIL.format(mark=str(mark)))
    model = {"AutoConfig": "evil.EvilConfig", "AutoModelForMaskedLM": "evil.EvilForMaskedLM"}
    tokenizer = {"AutoTokenizer": ["evil.EvilTokenizer", "evil.EvilTokenizer"]}
    if place == "config":
        change_json(folder / "config.json", auto_map=model, model_type="evil", architectures=["EvilForMaskedLM"])
    elif place == "model":
        change_json(folder / "config.json", auto_map=model, architectures=["EvilForMaskedLM"])
    else:
        change_json(folder / "config.json", auto_map=tokenizer)
        change_json(folder / "tokenizer_config.json", auto_map=tokenizer, tokenizer_class="EvilTokenizer")


@pytest.mark.parametrize("place", ["config", "model", "tokenizer"])
def test_remote_code_is_never_run(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    questions: list[str] = []
    monkeypatch.setattr("builtins.input", lambda text="": questions.append(text) or "yes")
    plant(tmp_path / "m", tmp_path / "mark", place)
    with contextlib.suppress(dapd.DapdError):  # with classes that transformers has itself, it may load
        dapd.load(tmp_path / "m", device="cpu")
    assert questions == []
    assert not (tmp_path / "mark").exists()


def test_remote_code_is_not_run_on_a_yes(tmp_path: Path) -> None:
    plant(tmp_path / "m", tmp_path / "mark", "config")
    command = [sys.executable, "-m", "dapd", "generate", "-m", str(tmp_path / "m"), "--template", "the [MASK]"]
    done = subprocess.run(command, input="yes\n" * 50, capture_output=True, text=True, timeout=120, check=False)
    assert not (tmp_path / "mark").exists()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1


# --- around a text ---


def test_special_ids_are_all_but_the_end_and_the_mask(folder: Path) -> None:
    assert dapd.load(folder, device="cpu").tokenizer.special_ids == (0, 1, 3)


def test_a_text_is_closed_behind_its_masks(folder: Path) -> None:
    tokenizer = dapd.load(folder, device="cpu").tokenizer
    assert tokenizer.frame("the capital of ") == ([0, 5, 6, 7], [2])
    assert tokenizer.frame("the <mask> of") == ([0, 5, 4, 7], [2])


def test_generated_text_stands_before_what_closes_it(folder: Path) -> None:
    lm = dapd.load(folder, device="cpu")
    shown: list[int] = []

    class Show:
        def put(self, value: torch.Tensor) -> None:
            shown.extend(value.tolist())

        def put_draft(self, value: torch.Tensor) -> None:
            assert len(value) <= 6

        def end(self) -> None: ...

    done = lm.generate("the capital of", max_new_tokens=6, block_length=3, streamer=Show())
    assert done.trace.canvas == [0, 5, 6, 7, *[4] * 6, 2]
    assert (done.prompt_ids, len(done.ids), done.trace.slots) == ([0, 5, 6, 7], 6, list(range(4, 10)))
    assert shown == [*done.prompt_ids, *done.ids]
    assert (done.finish_reason == "stop") == (2 in done.ids)
    assert done.n_generated == (done.ids.index(2) if 2 in done.ids else 6)
    with_end = lm.generate("the capital of", max_new_tokens=6, fixed={5: 2})
    assert (with_end.ids[-1], with_end.finish_reason) == (2, "stop")


def test_no_special_token_but_the_end_is_predicted(folder: Path) -> None:
    """They are left out of a text: a reaction model lost tokens in half of its outputs."""
    lm = dapd.load(folder, device="cpu")
    assert lm.network.profile.special == (0, 1, 3)
    favoured = dict.fromkeys((0, 1, 2, 3, 4), 50.0) | {6: 40.0, 7: 30.0}
    predict = lm.network.inner.forward

    def biased(**given: Any) -> Any:
        out = predict(**given)
        for token, height in favoured.items():
            out.logits[..., token] = height
        return out

    lm.network.inner.forward = biased
    fields: dict[str, Any] = {"max_new_tokens": 4, "strategy": "original"}
    assert lm.generate("the", **fields).ids == [2] * 4
    assert lm.generate("the", eos="ban", **fields).ids == [6] * 4
    assert lm.generate("the", eos="ban", suppress=(6,), **fields).ids == [7] * 4


def test_another_padding_id_changes_nothing(tmp_path: Path) -> None:
    """RoBERTa counts positions by its config's padding id, and the tokenizer pads with its own."""
    write_model("roberta", tmp_path, pad_token_id=14)
    lm = dapd.load(tmp_path, device="cpu")
    prompts = ["the capital of france", "paris"]
    together = lm.generate_batch(prompts, strategy="dapd-staged", max_new_tokens=6)
    for prompt, one in zip(prompts, together, strict=True):
        assert lm.generate(prompt, strategy="dapd-staged", max_new_tokens=6).ids == one.ids
    tokens = torch.tensor([[1, 1, 0, 5, 14, 4, 2], [0, 5, 6, 7, 14, 4, 2]])
    valid = torch.tensor([[False] * 2 + [True] * 5, [True] * 7])
    batch = lm.network(tokens, slice(0, 7), slice(0, 7), valid=valid).logits
    for row, first in ((0, 2), (1, 0)):
        alone = lm.network.inner(input_ids=tokens[row : row + 1, first:]).logits
        torch.testing.assert_close(batch[row : row + 1, first:], alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "Nystromformer"])
def test_positions_begin_where_the_model_itself_begins(kind: str) -> None:
    """At 0, behind the padding id, or at 2."""
    torch.manual_seed(3)
    config = getattr(transformers, f"{kind}Config")(max_position_embeddings=66, **COMMON)
    network = HubMaskedLM(getattr(transformers, f"{kind}ForMaskedLM")(config), Profile(mask_id=4, eos_id=2, pad_id=1))
    tokens = torch.tensor([[0, 5, 6, 7, 4, 4, 2]])
    want = network.inner(input_ids=tokens).logits
    torch.testing.assert_close(network(tokens, slice(0, 7), slice(0, 7)).logits, want)


SEES_PADDING = {
    "convolutions": lambda: transformers.ConvBertForMaskedLM(
        transformers.ConvBertConfig(embedding_size=32, head_ratio=1, conv_kernel_size=3, **COMMON)
    ),
    "means of segments": lambda: transformers.NystromformerForMaskedLM(transformers.NystromformerConfig(**COMMON)),
    "Fourier transforms": lambda: transformers.FNetForMaskedLM(transformers.FNetConfig(**COMMON)),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", SEES_PADDING)
def test_padding_is_seen_in_half_precision_too(kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    inner = SEES_PADDING[kind]().to(dtype)
    network = HubMaskedLM(inner, Profile(mask_id=4, eos_id=2, pad_id=1))
    assert network.sees_padding
    assert next(iter(network.parameters())).dtype == dtype


def test_the_trial_of_padding_leaves_a_model_as_it_is() -> None:
    """BigBird's gives up its blocks when it sees a short text; and a model may have room for few tokens."""
    config = transformers.BigBirdConfig(attention_type="block_sparse", block_size=2, num_random_blocks=1, **COMMON)
    network = HubMaskedLM(transformers.BigBirdForMaskedLM(config), Profile(mask_id=4, eos_id=2, pad_id=1))
    assert network.sees_padding
    assert network.inner.bert.attention_type == "block_sparse"
    short = transformers.BertConfig(max_position_embeddings=6, **COMMON)
    assert not HubMaskedLM(transformers.BertForMaskedLM(short), network.profile).sees_padding


@pytest.mark.parametrize("kind", SEES_PADDING)
def test_rows_of_a_model_that_sees_padding_are_computed_one_by_one(kind: str) -> None:
    torch.manual_seed(3)
    inner = SEES_PADDING[kind]()
    inner.set_attn_implementation("eager")
    network = HubMaskedLM(inner, Profile(mask_id=4, eos_id=2, pad_id=1))
    assert network.sees_padding
    tokens = torch.tensor([[1, 1, 1, 0, 5, 4, 2], [0, 5, 6, 7, 14, 4, 2]])
    valid = tokens != 1
    everything, window = slice(0, 7), slice(4, 7)
    shown = kind != "Fourier transforms"
    for keys in ("window", "canvas"):
        capture = Capture(frozenset({0, 2}), keys=keys) if shown else None
        batch = network(tokens, everything, window, valid=valid, capture=capture)
        for row, before in ((0, 3), (1, 0)):
            part = slice(window.start - before, window.stop - before)
            alone = network(tokens[row : row + 1, before:], slice(0, 7 - before), part, capture=capture)
            torch.testing.assert_close(batch.logits[row], alone.logits[0], rtol=0, atol=1e-5)
            if shown:
                kept = batch.attention[row] if keys == "window" else batch.attention[row][:, before:]
                torch.testing.assert_close(kept, alone.attention[0], rtol=0, atol=1e-5)
    if not shown:
        with pytest.raises(dapd.DapdError, match="FNetForMaskedLM does not show the attention"):
            network(tokens, everything, window, valid=valid, capture=Capture(frozenset({0})))


def test_most_families_do_not_see_padding(folder: Path) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        assert not dapd.load(folder, device="cpu", dtype=dtype).network.sees_padding


@pytest.mark.parametrize("padding", [0, 1, 3])
def test_the_longest_length_is_what_the_positions_allow(tmp_path: Path, padding: int) -> None:
    write_model("roberta", tmp_path, pad_token_id=padding, max_position_embeddings=20)
    lm = dapd.load(tmp_path, device="cpu")
    assert lm.network.max_length == 20 - padding - 1
    room = lm.network.max_length - len(lm.tokenizer.encode("paris"))
    assert len(lm.generate("paris", max_new_tokens=room).ids) == room
    with pytest.raises(dapd.DapdError, match=str(lm.network.max_length)):
        lm.generate("paris", max_new_tokens=room + 1)


def test_ids_outside_of_the_vocabulary_are_named(folder: Path) -> None:
    lm = dapd.load(folder, device="cpu")
    with pytest.raises(dapd.DapdError, match=r"token id 99 is outside of the vocabulary \(0\.\.18\)"):
        lm.network(torch.tensor([[0, 99, 4]]), slice(0, 3), slice(2, 3))
