"""The parts of the harness: prompts, likelihoods, code, guarded scorers, local files, options."""

import importlib
import itertools
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import dapd
from dapd.errors import DapdError
from dapd.evaluation.harness.code import CodeEval, CodeLimits, limited, local_code_eval, pass_at
from dapd.evaluation.harness.data import GSM8K, IFEVAL, MBPP
from dapd.evaluation.harness.likelihood import log_likelihood
from dapd.evaluation.harness.options import EvalOptions, configured
from dapd.evaluation.harness.prompts import Prompter, chat_mode, conversation, cut, fenced
from dapd.evaluation.harness.scoring import Guard, summarise
from dapd.evaluation.runs import Run
from dapd.evaluation.world import World


class ChatTokenizer:
    """Words as they stand; a chat is written out, so that tests can read it."""

    has_chat = True

    def __init__(self) -> None:
        self.words: list[str] = []

    def _id(self, word: str) -> int:
        if word not in self.words:
            self.words.append(word)
        return self.words.index(word)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return [self._id(w) for w in (["<s>"] if special else []) + text.split()]

    def chat(self, messages: Any) -> list[int]:
        text = " ".join(f"<{m['role']}> {m['content']} <end>" for m in messages) + " <assistant>"
        return self.encode(text, special=False)

    def decode(self, ids: Any, *, skip_special: bool = True) -> str:
        return " ".join(self.words[i] for i in ids)


def shown(mode: Any, context: str, prefix: str = "") -> str:
    tokenizer = ChatTokenizer()
    return tokenizer.decode(Prompter(tokenizer, mode).ids(context, prefix))


def test_chat_modes() -> None:
    assert shown("none", "Q one A 1 Q two A") == "<s> Q one A 1 Q two A"
    assert shown("single_turn", "Q one A 1 Q two A") == "<user> Q one A 1 Q two A <end> <assistant>"
    turns = conversation([{"role": "user", "content": "Q"}])
    assert shown("multi_turn", turns) == "<user> Q <end> <assistant>"


def test_the_beginning_of_the_answer_stands_behind_the_assistant() -> None:
    assert shown("single_turn", "Write it. Here goes:", "Here goes:") == (
        "<user> Write it. <end> <assistant> Here goes:"
    )
    begun = conversation([{"role": "user", "content": "Q"}, {"role": "assistant", "content": "It is"}])
    assert shown("multi_turn", begun) == "<user> Q <end> <assistant> It is"


def test_chat_without_a_template() -> None:
    plain = dapd.load("random:tiny-llada", device="cpu").tokenizer
    assert chat_mode("auto", plain) == "none"
    assert chat_mode("auto", ChatTokenizer()) == "single_turn"
    with pytest.raises(DapdError, match="no chat template"):
        chat_mode("multi_turn", plain)


def test_a_space_at_the_border_goes_to_the_continuation() -> None:
    tokenizer = dapd.load("random:tiny-llada", device="cpu").tokenizer
    before, after = Prompter(tokenizer, "none").pair("Answer: ", "yes")
    assert (tokenizer.decode(before), tokenizer.decode(after)) == ("Answer:", " yes")


def test_cut_at_the_first_stop() -> None:
    assert cut("a\ndef b\n# c", ["\n#", "\ndef"]) == "a"
    assert cut("abc", ["x", ""]) == "abc"


def test_fences() -> None:
    assert fenced("a\n```python\nx = 1\n```\nb```\ny```") == "\nx = 1\n"
    assert fenced("```\nx = 1") == "\nx = 1"
    assert fenced("x = 1") is None


def exact_bound(network: Any, context: list[int], tail: list[int]) -> float:
    """The mean over every masking of every size, sizes equally likely."""
    n, total = len(tail), 0.0
    for size in range(1, n + 1):
        chosen = list(itertools.combinations(range(n), size))
        for places in chosen:
            row = torch.tensor([context + [network.profile.mask_id if i in places else t for i, t in enumerate(tail)]])
            with torch.inference_mode():
                found = network(row, slice(0, row.shape[1]), slice(len(context), row.shape[1])).logits
            probs = found[0].float().log_softmax(-1)
            total += n / size * sum(float(probs[i, tail[i]]) for i in places) / len(chosen) / n
    return total


@pytest.mark.parametrize("shape", ["tiny-llada", "tiny-dream"])
def test_likelihood_agrees_with_the_mean_over_all_maskings(shape: str) -> None:
    network = dapd.load(f"random:{shape}", device="cpu").network
    context, tail = [5, 6, 7], [8, 9, 10, 11]
    exact = exact_bound(network, context, tail)
    assert log_likelihood(network, context, tail, 2000, seed=0) == pytest.approx(exact, rel=0.03)
    assert log_likelihood(network, context, tail, 40, seed=1) == log_likelihood(network, context, tail, 40, seed=1)
    assert log_likelihood(network, context, [], 4, seed=0) == 0.0


def test_one_token_has_one_masking() -> None:
    network = dapd.load("random:tiny-llada", device="cpu").network
    assert log_likelihood(network, [5, 6], [9], 7, seed=3) == pytest.approx(exact_bound(network, [5, 6], [9]))


def test_code_metric_counts_and_has_the_limits_of_the_run() -> None:
    with limited(CodeLimits(0.5, 400)):
        rates, runs = CodeEval().compute(
            references=["assert f() == 1", "assert g()"],
            predictions=[["def f(): return 1", "def f(): return 2"], ["import time; time.sleep(9)"] * 2],
            k=[1, 2],
        )
    assert rates == {"pass@1": 0.25, "pass@2": 0.5}
    assert runs[1] == ["timed out", "timed out"]


def test_code_cannot_mark_itself_as_passed() -> None:
    """Words on every descriptor, a word found in the interpreter, an early end: what a process says decides nothing."""
    write = "for fd in range(64):\n    try: os.write(fd, word)\n    except OSError: pass\nos._exit(0)"
    words = ("b'passed'", "sys.argv[-1].encode()", "sys.modules['__main__'].__dict__.get('mark', '').encode()")
    candidates = [f"import os, sys\nword = {word}\n{write}" for word in words]
    _, runs = CodeEval().compute(references=["assert f() == 1"], predictions=[candidates])
    assert not any("passed" in reason for reason in runs[0])


def test_pass_at_k_by_counting() -> None:
    for total, passed, k in itertools.product(range(1, 6), range(6), range(1, 5)):
        if passed > total or k > total:
            continue
        draws = list(itertools.combinations(range(total), k))
        share = sum(any(i < passed for i in draw) for draw in draws) / len(draws)
        assert math.isclose(pass_at(k, total, passed), share)
    with pytest.raises(DapdError, match="pass@10 needs 10 candidates"):
        pass_at(10, 1, 0)


def test_the_library_of_metrics_is_imported_for_those_of_the_hub_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evaluate.py").write_text("VERSION = 3\nload = lambda name: f'{name} of the hub'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "evaluate", None)  # whatever is there comes back after the test
    del sys.modules["evaluate"]
    with local_code_eval():
        assert isinstance(importlib.import_module("evaluate").load("code_eval"), CodeEval)
    assert "evaluate" not in sys.modules, "nobody needed it"
    with local_code_eval():
        metrics = importlib.import_module("evaluate")
        assert metrics.load("bleu") == "bleu of the hub"
        assert metrics.VERSION == 3
        assert isinstance(metrics.load("code_eval"), CodeEval)
    assert importlib.import_module("evaluate").load("code_eval") == "code_eval of the hub"


def test_a_scorer_that_hangs_is_given_up_and_the_next_answer_is_scored() -> None:
    def score(doc: Any, results: list[str]) -> dict[str, Any]:
        if results[0] == "hang":
            time.sleep(60)
        if results[0] == "die":
            import os

            os._exit(1)
        if results[0] == "raise":
            raise KeyError("column")
        return {"right": results[0] == doc, "said": results[0]}

    guard = Guard(score, 1.0, "task")
    assert guard("a", ["a"]) == {"right": True, "said": "a"}
    assert guard("a", ["hang"]) == {"right": False, "said": ""}
    assert guard("a", ["die"]) == {"right": False, "said": ""}
    assert guard("b", ["b"])["right"]
    assert guard.timed_out == ["a", "a"]
    with pytest.raises(DapdError, match=r"scorer of task .* KeyError: 'column'"):
        guard("a", ["raise"])
    guard.close()


def test_a_scorer_that_never_answers_is_an_error() -> None:
    guard = Guard(lambda doc, results: time.sleep(60) or {}, 0.2, "slow task")
    with pytest.raises(DapdError, match="slow task takes longer than"):
        guard("a", ["b"])


def test_local_files_are_checked_to_the_line(tmp_path: Path) -> None:
    with pytest.raises(DapdError, match=r"cannot read .*train\.jsonl"):
        GSM8K.read(tmp_path)
    (tmp_path / "gsm8k").mkdir()
    good = json.dumps({"question": "q", "answer": "#### 1"}) + "\n"
    (tmp_path / "gsm8k" / "train.jsonl").write_text(good)
    for bad, said in (
        (good + '{"question": "q"}\n', "line 2: no column 'answer'"),
        (good + '{"question": "q", "answer": null}\n', "line 2: answer is None; it must be of type str"),
        (good + "x\n", "line 2: not JSON"),
        (good + "[" * 100_000 + "\n", "line 2: not JSON .*nested too deeply"),
    ):
        (tmp_path / "gsm8k" / "test.jsonl").write_text(bad)
        with pytest.raises(DapdError, match=said):
            GSM8K.read(tmp_path)
    (tmp_path / "gsm8k" / "test.jsonl").write_text("\n")
    with pytest.raises(DapdError, match="no rows"):
        GSM8K.read(tmp_path)


def test_the_test_split_of_mbpp_and_the_sentence_splitter_of_ifeval(tmp_path: Path) -> None:
    (tmp_path / "mbpp").mkdir()
    row = {"text": "t", "code": "c", "test_list": []}
    (tmp_path / "mbpp" / "mbpp.jsonl").write_text(
        "".join(json.dumps({**row, "task_id": i}) + "\n" for i in (10, 11, 510, 511))
    )
    assert [r["task_id"] for r in MBPP.read(tmp_path)["test"]] == [11, 510]
    with pytest.raises(DapdError, match="punkt_tab is missing"):
        IFEVAL.read(tmp_path)


def test_options_and_fields() -> None:
    for wrong in ({"limit": 0}, {"batch": 0}, {"chat": "singel"}, {"code_seconds": 0}, {"max_new_tokens": 0}):
        with pytest.raises(DapdError):
            EvalOptions(**wrong)  # type: ignore[arg-type]
    with pytest.raises(DapdError, match="seed"):
        EvalOptions(loop=dapd.Options(seed=3))
    fields = {
        "tau_max": "0.3",
        "block_length": "8",
        "chat": "none",
        "mc_samples": "4",
        "temperature": "0.5",
        "seed": "9",
    }
    setting, options = configured("dapd-direct", fields, EvalOptions(limit=3))
    assert setting.strategy.tau_max == 0.3  # type: ignore[attr-defined]
    assert (options.loop.block_length, options.loop.sampling.temperature, options.loop.seed) == (8, 0.5, 0)
    assert (options.chat, options.mc_samples, options.limit, options.seed) == ("none", 4, 3, 9)
    with pytest.raises(DapdError, match="did you mean 'tau_max'"):
        configured("dapd-direct", {"tau_mx": "1"}, EvalOptions())


def test_summary_counts_by_hand() -> None:
    def record(doc: int, **numbers: float) -> dict[str, Any]:
        return {"kind": "generate", "task": "humaneval", "doc": doc, **numbers}

    records = [
        record(0, nfe=10, tokens=20, seconds=1.0, loop_seconds=2.0, prompt_tokens=100, fast_dllm_tokens=30),
        record(1, nfe=30, tokens=40, seconds=2.0, loop_seconds=2.0, prompt_tokens=200, fast_dllm_tokens=50),
    ]
    found = summarise(
        "humaneval",
        {"pass@1,create_test": 0.5, "pass@1_stderr,create_test": "N/A", "alias": "x"},
        records,
        {"pass@1,create_test"},
    )
    assert (found.n, found.accuracy, found.metric, found.nfe) == (2, 50.0, "pass@1,create_test", 20.0)
    assert (found.tokens_per_forward, found.tps, found.seconds) == (60 / 40, 20.0, 3.0)
    assert (found.tps_fast_dllm, found.tps_fast_dllm_2025) == (20.0, 95.0)


def test_results_that_lack_something_are_named(tmp_path: Path) -> None:
    """A number that is missing would count as 0 in the means, and a key that is missing would end in a KeyError."""
    pytest.importorskip("lm_eval", reason="the eval extra is not installed")
    from dapd.evaluation.harness.adapter import ledger

    whole = {"kind": "likelihood", "task": "t", "doc": 0, "idx": 0, "repeat": 0, "digest": "d", "nfe": 1, "tokens": 1}
    whole |= {"seconds": 0.5, "logprob": -1.0, "greedy": False}
    run = Run.open(tmp_path, {})
    run.append([whole])
    assert len(ledger(run).held) == 1
    for column in whole:
        run = Run.open(tmp_path / column, {})
        run.append([whole, {key: value for key, value in whole.items() if key != column}])
        with pytest.raises(DapdError, match=rf"results\.jsonl, line 2: {column} is None"):
            ledger(run)
    run = Run.open(tmp_path / "text", {})
    run.append([{**whole, "nfe": "many"}])
    with pytest.raises(DapdError, match="line 1: nfe is 'many'"):
        ledger(run)


def test_shares_are_whole_and_apart() -> None:
    shares = [World(rank, 3).share(list(range(11))) for rank in range(3)]
    assert sorted(i for share in shares for i in share) == list(range(11))
    assert World().gather([1, 2]) == [1, 2]


def test_a_launcher_without_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(DapdError, match="torchrun"):
        World.from_environment()
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(DapdError, match="whole numbers"):
        World.from_environment()


def test_weights_of_the_same_name_are_told_apart() -> None:
    from dapd.evaluation.fingerprint import fingerprint

    model = dapd.load("random:tiny-llada", device="cpu")
    before = fingerprint(model)
    assert before == fingerprint(dapd.load("random:tiny-llada", device="cpu"))
    assert before.endswith(" float32")
    # Any number counts, wherever it stands and however it is changed.
    for weight in model.network.parameters():  # type: ignore[attr-defined]
        for place in (0, weight.numel() // 2 + 3, weight.numel() - 1):
            with torch.no_grad():
                weight.flatten()[place] += 1
            after = fingerprint(model)
            assert after != before, (tuple(weight.shape), place)
            before = after
    next(iter(model.network.parameters())).data += 1  # type: ignore[attr-defined]
    assert fingerprint(model) != before
    halves = dapd.load("random:tiny-llada", device="cpu", dtype=torch.bfloat16)
    assert fingerprint(halves).endswith(" bfloat16")


def test_a_digest_is_made_once_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    from dapd.evaluation import fingerprint as module

    digests: list[int] = []
    whole = module._digest
    monkeypatch.setattr(module, "_digest", lambda weights: digests.append(1) or whole(weights))
    monkeypatch.setattr(module, "PIECE", 100)
    model = dapd.load("random:tiny-llada", device="cpu")
    assert module.fingerprint(model) == module.fingerprint(model)
    assert len(digests) == 1
