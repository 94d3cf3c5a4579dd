"""A model over two processes (gloo) against the same model in one: logits, attention, trajectories."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import dapd
from dapd.cli.app import app
from dapd.errors import DapdError
from dapd.models import random
from helpers_models import CONFIGS, build, write_checkpoint
from models.parallel_worker import RUNS, SHARP, STORED, shown

pytestmark = pytest.mark.slow
TESTS = Path(__file__).resolve().parents[1]


def torchrun(*command: str) -> str:
    """What two processes print; torchrun looks for a free port itself."""
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *command]
    path = os.pathsep.join([str(TESTS), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(run, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def networks():
    return {name: sharp(build(CONFIGS[name])) for name in STORED} | {
        "random": random(CONFIGS["llada"], sharpness=SHARP)
    }


@pytest.fixture(scope="module")
def alone(networks):
    """What one process sees."""
    return {name: shown(network) for name, network in networks.items()}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory, networks):
    """What each of two processes saw."""
    folder = tmp_path_factory.mktemp("parallel")
    for name in STORED:
        write_checkpoint(folder / name, networks[name], shards=2)
    torchrun(str(TESTS / "models" / "parallel_worker.py"), str(folder))
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


def sharp(network):
    with torch.no_grad():
        network.head.weight.mul_(SHARP)
    return network


@pytest.mark.parametrize("name", [*STORED, "random"])
def test_logits_and_attention_are_those_of_one_process(ranks, alone, name):
    first, second, whole = (seen[name]["tensors"] for seen in (*ranks, alone))
    for kind, mine, others, all_of_it in zip(("logits", "attention") * 2, first, second, whole, strict=True):
        assert torch.equal(mine, others), "every process sees the same numbers"
        torch.testing.assert_close(mine, all_of_it, rtol=0, atol={"logits": 1e-4, "attention": 1e-6}[kind])


@pytest.mark.parametrize("name", [*STORED, "random"])
def test_trajectories_are_those_of_one_process(ranks, alone, name):
    first, second, whole = (seen[name]["runs"] for seen in (*ranks, alone))
    for run in RUNS:
        assert first[run] == whole[run], run
        assert second[run] == whole[run], run
    assert len({str(steps) for steps in whole.values()}) > 3, "the decoders differ, so that equal means something"


def test_a_process_holds_half_of_what_is_divided(ranks, networks):
    whole = sum(weight.numel() for weight in networks["random"].held().values())
    norms = sum(weight.numel() for name, weight in networks["random"].held().items() if "norm" in name)
    config = networks["random"].config
    uneven = config.vocab_size % 2 * config.d_model  # one row of the embedding and one of the head is over
    for rank, sign in ((0, 1), (1, -1)):
        assert ranks[rank]["held"] == (whole - norms) // 2 + norms + sign * uneven


def test_what_does_not_go_is_refused_with_a_reason(ranks):
    assert ranks[0]["odd"] == "the model has 1 key-value heads, which 2 processes cannot divide evenly"
    assert "passes of the model ShardedTransformer cannot be recorded" in ranks[0]["recorded"]


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [({}, "start them with torchrun"), ({"fp8": True}, "fp8 layers cannot be divided")],
)
def test_without_other_processes_it_says_how_to_start_them(fields, complaint, monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(DapdError, match=complaint):
        dapd.load("random:tiny-llada", device="cpu", tensor_parallel=True, **fields)


def test_standard_input_is_not_shared(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    done = CliRunner().invoke(app, ["generate", "-m", "random:tiny-llada", "--tensor-parallel"])
    assert "give it as an argument or with --file" in str(done.exception)


def test_the_command_answers_once(tmp_path):
    trace = tmp_path / "trace.jsonl"
    command = ["generate", "Shuffle the list: Nora, Cyrus, Luca", "-m", "lab", "--device", "cpu", "--json"]
    said = torchrun("-m", "dapd", *command, "--trace", str(trace), "--tensor-parallel")
    [line] = said.splitlines()
    answer = json.loads(line)
    lm = dapd.load("lab", device="cpu")
    alone = lm.generate(lm.question("Shuffle the list: Nora, Cyrus, Luca"), max_new_tokens=32, early_stop=True)
    assert sorted(answer["text"].split(", ")) == ["Cyrus", "Luca", "Nora"]
    assert (answer["text"], answer["ids"], answer["nfe"]) == (alone.text, alone.ids, alone.nfe)
    assert len(trace.read_text().splitlines()) > 1
