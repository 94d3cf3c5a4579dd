"""Masked language models of `transformers`: tiny random ones of four families, through the loader and the CLI."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from typer.testing import CliRunner

import dapd
from dapd.cli.app import app
from dapd.models.base import Capture

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


def write_model(family: str, folder: Path) -> None:
    torch.manual_seed(3)
    FAMILIES[family]().save_pretrained(folder)
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


def test_infilling_through_the_command_line(folder: Path) -> None:
    result = CliRunner().invoke(app, ["generate", "-m", str(folder), "--template", "the [MASK] of [MASK]"])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("the ")


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
