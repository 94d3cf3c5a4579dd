"""The gauge, on models whose certainty is known."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from dapd.cli.lab import app
from dapd.lab import checkpoint
from dapd.lab.evaluate import Exam
from dapd.lab.gauge import Gauge, gauge
from dapd.lab.settings import TrainSettings
from dapd.lab.tasks import get
from dapd.lab.tokenizer import LabTokenizer
from dapd.models import Transformer

SETTINGS = replace(TrainSettings(), layers=1, width=32, heads=2, mlp=32)


def network(**logits: float) -> Transformer:
    """A model that predicts the same everywhere: these logits for these tokens, 0 for all others."""
    tokenizer = LabTokenizer.build()
    model = Transformer(checkpoint.network_config(SETTINGS, tokenizer))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embed.weight.fill_(1.0)
        model.norm.weight.fill_(1.0)
        for token, logit in logits.items():
            model.head.weight[tokenizer.vocabulary[token]] = logit / SETTINGS.width
    return model


def test_a_sure_model_is_outside_of_the_regime() -> None:
    found = gauge(network(Sure=20.0), LabTokenizer.build(), get("quiz-5"), Exam(3, batch=2))
    assert found.sure == 1.0
    assert found.confidence > 0.99
    assert found.entropy < 0.01
    assert found.past_end == 0.0
    assert found.passes == 6  # 192 tokens in blocks of 32, each in one pass
    assert found.pace == found.text_pace == 32.0
    assert len(found.complaints()) == 2


def test_an_unsure_model_commits_one_token_a_pass() -> None:
    found = gauge(network(Sure=1.0), LabTokenizer.build(), get("quiz-1"), Exam(2))
    vocabulary = -(-len(LabTokenizer.build()) // 64) * 64
    # The mask is never predicted, and all other tokens are equally likely.
    assert found.confidence == pytest.approx(math.e / (math.e + vocabulary - 2), rel=1e-3)
    assert found.entropy == pytest.approx(math.log(vocabulary), rel=0.01)
    assert found.sure == 0.0
    assert found.pace == 1.0
    assert [complaint.split(" commits")[0] for complaint in found.complaints()] == ["the threshold decoder"]


def test_ends_do_not_count_as_text() -> None:
    for token in ("<|endoftext|>", "<|eot_id|>"):
        found = gauge(network(**{token: 3.0}), LabTokenizer.build(), get("quiz-1"), Exam(2))
        assert found.past_end == 1.0
        assert math.isnan(found.sure)
        assert found.text_pace == 0.0


def test_complaints() -> None:
    fine = Gauge("quiz-5", 1, 0.15, 0.2, 3.0, 0.3, 50.0, 2.0, 1.5)
    assert fine.complaints() == []
    assert "16.0%" in replace(fine, sure=0.16).complaints()[0]
    assert "6.1 tokens" in replace(fine, pace=6.1).complaints()[0]


def test_by_command(tmp_path: Path) -> None:
    checkpoint.export(tmp_path, SETTINGS, dict(network(Sure=1.0).named_parameters()), LabTokenizer.build())
    result = CliRunner().invoke(app, ["gauge", str(tmp_path), "-t", "quiz-1", "-n", "2", "--device", "cpu"])
    assert result.exit_code == 0, result.output
    assert "tokens a pass, EOS included" in result.output
    assert "outside of the regime" in result.output
