"""lm-eval's tasks end to end: gold answers score full marks, killed runs and several processes change nothing."""

import csv
import dataclasses
import json
import os
import re
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

import dapd
from dapd.errors import DapdError
from evaluation.harness_data import N, write_data

pytest.importorskip("lm_eval", reason="the eval extra is not installed")

from lm_eval.api.metrics import mean, perplexity

from dapd.cli.app import app
from dapd.cli.eval import report
from dapd.evaluation.harness.data import GSM8K
from dapd.evaluation.harness.gold import EXPECTED, TASKS, GoldModel, check
from dapd.evaluation.harness.options import EvalOptions
from dapd.evaluation.harness.run import evaluate
from dapd.evaluation.harness.scoring import shares
from dapd.evaluation.harness.tasks import KNOWN, Known, load_tasks
from dapd.generation import Completion
from dapd.models.tokenizer import ByteTokenizer
from dapd.settings import Setting, setting, strategy
from dapd.trace import Trace

SHARED = Path(__file__).parents[3] / "shared" / "data"
shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the benchmark files (../shared/data) are not here")
LOCAL = ("gsm8k", "humaneval", "mbpp", "minerva_math500")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def model() -> dapd.DiffusionLM:
    return dapd.load("random:tiny-llada", device="cpu")


def options(data: Path, **changes: Any) -> EvalOptions:
    chosen: dict[str, Any] = {"max_new_tokens": 16, "shots": 0, "batch": 4, "confirm_unsafe_code": True, **changes}
    return EvalOptions(data_dir=data, **chosen)


def counts(found: Any) -> list[tuple[Any, ...]]:
    return [(s.task, s.n, s.metrics, s.nfe, s.tokens_per_forward) for s in found]


def test_gold_answers_score_full_marks(data: Path, tmp_path: Path) -> None:
    found = check(data, options(data, shots=None, code_seconds=20), tmp_path, LOCAL)
    assert [(s.task, s.n, s.accuracy) for s in found] == [(task, N, 100.0) for task in LOCAL]
    assert {value for s in found for value in s.metrics.values()} == {1.0}


def test_wrong_answers_score_nothing(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gold = GoldModel(data)
    shifted = dict(zip(gold.answers, [*list(gold.answers.values())[1:], ""], strict=True))
    monkeypatch.setattr(gold, "answers", shifted)
    found = evaluate(gold, setting("original"), LOCAL, options(data), tmp_path)
    assert [s.accuracy for s in found] == [0.0] * 4


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("something asks for the network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


@shared
@pytest.mark.usefixtures("no_network")
def test_gold_answers_of_the_public_files(tmp_path: Path) -> None:
    found = check(SHARED, options(SHARED, shots=None, limit=20, code_seconds=20), tmp_path)
    assert [s.task for s in found] == list(TASKS)
    assert {s.task: s.accuracy for s in found if s.task != "ifeval"} == dict.fromkeys(EXPECTED, 100.0)
    assert 0 < found[-1].accuracy < 100


@shared
@pytest.mark.slow
@pytest.mark.skipif("DAPD_ALL_GOLD" not in os.environ, reason="takes minutes; set DAPD_ALL_GOLD=1")
def test_all_gold_answers_of_the_public_files(tmp_path: Path) -> None:
    found = {s.task: s for s in check(SHARED, options(SHARED, shots=None, code_seconds=20), tmp_path)}
    assert {task: s.n for task, s in found.items()} == {
        "gsm8k": 1319,
        "humaneval": 164,
        "minerva_math500": 500,
        "mbpp": 500,
        "ifeval": 541,
    }
    assert all(found[task].accuracy >= least for task, least in EXPECTED.items())


@shared
def test_default_shots_are_lm_evals() -> None:
    loaded = load_tasks(TASKS, EvalOptions(data_dir=SHARED, confirm_unsafe_code=True))
    assert {name: task.get_config("num_fewshot") for name, task in loaded.items()} == {
        "gsm8k": 5,
        "humaneval": 0,
        "minerva_math500": 4,
        "mbpp": 3,
        "ifeval": 0,
    }


def test_samples_are_written_with_what_they_cost(model: dapd.DiffusionLM, data: Path, tmp_path: Path) -> None:
    chosen = Setting(strategy("dapd-direct", tau_max=0.3))
    [found] = evaluate(model, chosen, ["gsm8k"], options(data, limit=5), tmp_path)
    records = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert sorted(r["doc"] for r in records) == list(range(5))
    assert found.nfe == sum(r["nfe"] for r in records) / 5
    assert found.tps == pytest.approx(sum(r["tokens"] for r in records) / sum(r["seconds"] for r in records))
    assert all(r["loop_seconds"] >= r["seconds"] > 0 and r["tokens"] <= 16 for r in records)
    assert records[0]["settings"]["strategy"]["tau_max"] == 0.3
    assert records[0]["settings"]["max_new_tokens"] == 16
    assert all("Question:" not in r["text"] for r in records)
    [alone] = evaluate(model, chosen, ["gsm8k"], options(data, limit=5, batch=1), tmp_path / "alone")
    assert counts([alone]) == counts([found])


def test_blocks_of_a_setting_and_lengths_of_the_task_files(model: dapd.DiffusionLM, data: Path, tmp_path: Path) -> None:
    evaluate(model, Setting(setting("original").strategy, 4), ["gsm8k"], options(data, limit=1), tmp_path / "a")
    [record] = [json.loads(line) for line in (tmp_path / "a" / "results.jsonl").read_text().splitlines()]
    assert record["settings"]["n_blocks"] == 4
    file_says = options(data, limit=1, max_new_tokens=None, chat="none")
    evaluate(GoldModel(data), setting("original"), ["humaneval"], file_says, tmp_path / "b")
    assert json.loads((tmp_path / "b" / "results.jsonl").read_text())["settings"]["max_new_tokens"] == 1024


def test_more_documents_and_tasks_go_on_from_what_is_there(model: dapd.DiffusionLM, data: Path, tmp_path: Path) -> None:
    run = setting("fast-dllm")
    evaluate(model, run, ["gsm8k"], options(data, limit=2), tmp_path)
    before = (tmp_path / "results.jsonl").read_text()
    found = evaluate(model, run, ["gsm8k", "minerva_math500"], options(data, limit=4), tmp_path)
    after = (tmp_path / "results.jsonl").read_text()
    assert after.startswith(before)
    assert (len(before.splitlines()), len(after.splitlines())) == (2, 8)
    assert counts(found) == counts(
        evaluate(model, run, ["gsm8k", "minerva_math500"], options(data, limit=4), tmp_path / "other")
    )
    summary = (tmp_path / "summary.json").read_bytes()
    scores = (tmp_path / "scores.json").read_bytes()
    [first] = evaluate(model, run, ["gsm8k"], options(data, limit=2), tmp_path)
    assert first.n == 2
    # What is written down stays that of more documents and more tasks.
    assert (tmp_path / "summary.json").read_bytes() == summary
    assert (tmp_path / "scores.json").read_bytes() == scores


def test_a_run_that_failed_at_once_leaves_the_folder_free(model: dapd.DiffusionLM, data: Path, tmp_path: Path) -> None:
    with pytest.raises(DapdError, match=r"and 9999 new ones; the model takes 1024 in all; .* fewer new tokens \(-n\)"):
        evaluate(model, setting("fast-dllm"), ["gsm8k"], options(data, max_new_tokens=9999), tmp_path)
    assert evaluate(model, setting("fast-dllm"), ["gsm8k"], options(data, limit=1), tmp_path)[0].n == 1
    with pytest.raises(DapdError, match="max_new_tokens: 16 there, 9999 here"):
        evaluate(model, setting("fast-dllm"), ["gsm8k"], options(data, max_new_tokens=9999), tmp_path)


def test_a_finished_folder_is_only_read(model: dapd.DiffusionLM, data: Path, tmp_path: Path) -> None:
    """It may lie where nothing can be written."""
    found = evaluate(model, setting("fast-dllm"), ["gsm8k"], options(data, limit=2), tmp_path)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    again = evaluate(model, setting("fast-dllm"), ["gsm8k"], options(data, limit=2), tmp_path)
    assert counts(again) == counts(found)
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("name", ["results.jsonl", "environment.jsonl"])
def test_a_full_disk_is_one_line(model: dapd.DiffusionLM, data: Path, tmp_path: Path, name: str) -> None:
    run = setting("fast-dllm")
    evaluate(model, run, ["gsm8k"], options(data, limit=1), tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/full")
    with pytest.raises(DapdError, match=rf"cannot write .*{name}: No space left on device"):
        evaluate(model, run, ["gsm8k"], options(data, limit=2), tmp_path)


def test_another_configuration_is_refused(model: dapd.DiffusionLM, data: Path, tmp_path: Path) -> None:
    evaluate(model, setting("fast-dllm"), ["gsm8k"], options(data, limit=1), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for chosen, changes, said in (
        ("fast-dllm", {"max_new_tokens": 8}, "max_new_tokens: 16 there, 8 here"),
        ("fast-dllm", {"loop": dapd.Options(early_stop=True)}, r"loop\.early_stop: False there, True here"),
        ("original", {}, r"strategy\.name: 'Threshold' there, 'TopK' here"),
    ):
        with pytest.raises(DapdError, match=said):
            evaluate(model, setting(chosen), ["gsm8k"], options(data, limit=1, **changes), tmp_path)
    other = write_data(tmp_path / "data")
    rows = (other / "gsm8k" / "test.jsonl").read_text().replace("plus", "and")
    (other / "gsm8k" / "test.jsonl").write_text(rows)
    with pytest.raises(DapdError, match=r"'gsm8k', 0, .*another text or with other settings"):
        evaluate(model, setting("fast-dllm"), ["gsm8k"], options(other, limit=1), tmp_path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.name in before and p.suffix != ".jsonl"} == {
        name: content for name, content in before.items() if not name.endswith(".jsonl")
    }
    assert (tmp_path / "results.jsonl").read_bytes() == before["results.jsonl"]


@pytest.mark.usefixtures("no_network")
def test_every_known_task_runs_from_files(model: dapd.DiffusionLM, data: Path, tmp_path: Path) -> None:
    found = evaluate(model, setting("fast-dllm"), list(KNOWN), options(data, limit=1), tmp_path)
    assert [(s.task, s.n, s.metric) for s in found] == [(name, 1, known.metric) for name, known in KNOWN.items()]


class ChatModel(GoldModel):
    """Writes its chats out, keeps the prompts and says nothing."""

    class Tokens(ByteTokenizer):
        has_chat = True

        def chat(self, messages: Any) -> list[int]:
            return self.encode("".join(f"[{m['role']}]{m['content']}" for m in messages) + "[assistant]")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._tokenizer, self.prompts = self.Tokens(self.network.profile), []

    def answer(self, prompt: list[int]) -> Completion:
        self.prompts.append(self.tokenizer.decode(prompt))
        ids = [self.network.profile.eos_id]
        return Completion("", ids, prompt, "stop", Trace([*prompt, 256], [len(prompt)], 256, 257, len(prompt)))


@pytest.mark.parametrize(
    ("chat", "form"),
    [
        ("none", r"Question: (.*)\nAnswer: (.*)\n\nQuestion: (.*)\nAnswer:"),
        ("auto", r"\[user\]Question: (.*)\nAnswer: (.*)\n\nQuestion: (.*)\nAnswer:\[assistant\]"),
        ("single_turn", r"\[user\]Question: (.*)\nAnswer: (.*)\n\nQuestion: (.*)\nAnswer:\[assistant\]"),
        ("multi_turn", r"\[user\]Question: (.*)\nAnswer:\[assistant\](.*)\[user\]Question: (.*)\nAnswer:\[assistant\]"),
    ],
)
def test_prompts_under_each_chat_mode(chat: Any, form: str, data: Path, tmp_path: Path) -> None:
    model = ChatModel(data)
    evaluate(model, setting("original"), ["gsm8k"], options(data, chat=chat, shots=1, limit=3), tmp_path)
    matches = [re.fullmatch(form, prompt) for prompt in model.prompts]
    assert all(matches), model.prompts
    assert {m[3] for m in matches if m} == {f"What is {i} plus 1?" for i in range(3)}
    assert all(m[2].startswith("####") for m in matches if m)


def test_an_answer_that_is_begun_for_the_model(data: Path, tmp_path: Path) -> None:
    prompts = []
    for chat in ("single_turn", "multi_turn"):
        model = ChatModel(data)
        evaluate(model, setting("original"), ["humaneval_instruct"], options(data, chat=chat, limit=1), tmp_path / chat)
        prompts += model.prompts
    begun = '[assistant]Here is the completed function:\n```python\ndef add0(x):\n    """Adds."""\n'
    assert len(prompts) == 2
    assert all(prompt.rstrip().endswith(begun.rstrip()) for prompt in prompts)
    assert all(prompt.count("[assistant]") == 1 for prompt in prompts)


def test_code_in_a_fence_is_scored_where_it_is_a_chat(data: Path, tmp_path: Path) -> None:
    class Talker(ChatModel):
        def answer(self, prompt: list[int]) -> Completion:
            i = int(re.findall(r"add(\d)", self.tokenizer.decode(prompt))[-1])
            done = super().answer(prompt)
            code = f"def add{i}(x):\n    return helper(x)\n\ndef helper(x):\n    return x + {i}\n"
            return dataclasses.replace(done, text=f"Sure! Here it is:\n```python\n{code}```\nIt adds.")

    def score(chat: Any, fenced_code: bool | None) -> float:
        chosen = options(data, chat=chat, fenced_code=fenced_code, limit=2)
        [found] = evaluate(Talker(data), setting("original"), ["humaneval"], chosen, tmp_path / f"{chat}{fenced_code}")
        return found.accuracy

    assert score("single_turn", None) == 100
    assert score("single_turn", False) == 0
    assert score("none", None) == 0
    assert score("none", True) == 100


def test_without_lm_eval(model: dapd.DiffusionLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DapdError, match=r"pip install 'dapd\[eval\]'"):
        evaluate(model, setting("original"), ["gsm8k"], EvalOptions(), tmp_path)


def test_mistakes_are_refused_before_anything_is_written(model: dapd.DiffusionLM, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for tasks, changes, said in (
        (["humaneval"], {"confirm_unsafe_code": False}, "--confirm-run-unsafe-code"),
        (["gsm8"], {}, "did you mean 'gsm8k'"),
        (["hellaswag"], {}, "unknown task with local files"),
        ([], {}, "no tasks"),
        (["gsm8k"], {"data_dir": tmp_path}, r"cannot read .*gsm8k"),
    ):
        chosen = {**vars(options(data)), **changes}
        with pytest.raises(DapdError, match=said):
            evaluate(model, setting("original"), tasks, EvalOptions(**chosen), out)
    assert not out.exists()


def test_a_prompt_that_does_not_fit(model: dapd.DiffusionLM, data: Path, tmp_path: Path) -> None:
    with pytest.raises(DapdError, match=r"gsm8k, document \d: a prompt of .* fewer examples"):
        evaluate(model, setting("original"), ["gsm8k"], options(data, max_new_tokens=1000), tmp_path)
    assert not (tmp_path / "results.jsonl").exists()


def test_a_checker_that_hangs_is_reported(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gold = GoldModel(data)
    slow = {end: "    import time; time.sleep(99)\n" if "add3(" in end else a for end, a in gold.answers.items()}
    monkeypatch.setattr(gold, "answers", slow)
    [found] = evaluate(gold, setting("original"), ["humaneval"], options(data, code_seconds=3), tmp_path / "a")
    assert found.accuracy == 90.0
    short = options(data, code_seconds=60, checker_seconds=3)
    [found] = evaluate(gold, setting("original"), ["humaneval"], short, tmp_path / "b")
    assert found.accuracy == 90.0
    assert json.loads((tmp_path / "b" / "summary.json").read_text())["checker_timeouts"] == {"humaneval": 1}


CHOICE = """
task: choose
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_choice: ["yes", "no"]
doc_to_target: 0
metric_list:
  - metric: acc
"""


def test_only_scores_from_0_to_1_are_shares() -> None:
    task = SimpleNamespace(aggregation=lambda: {"acc": mean, "bleu": mean, "perplexity": perplexity})
    samples = [{"acc": 1.0, "bleu": 23.4, "perplexity": -1.5}, {"acc": False, "bleu": 0.5, "perplexity": -2.0}]
    assert shares(task, {"acc,none": 0.5, "bleu,none": 11.95, "perplexity,none": 5.8, "new,none": 0.2}, samples) == {
        "acc,none",
        "new,none",
    }


def test_a_perplexity_is_no_share(
    model: dapd.DiffusionLM, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "guess.yaml"
    path.write_text(
        "task: guess\noutput_type: loglikelihood\ntest_split: test\ndoc_to_text: '{{question}}'\n"
        "doc_to_target: ' {{answer}}'\nmetric_list:\n  - metric: perplexity\n  - metric: acc\n"
    )
    monkeypatch.setitem(KNOWN, "guess", Known(str(path), GSM8K, ""))
    asked = options(data, limit=2, mc_samples=2)
    found = evaluate(model, setting("original"), ["guess", "gsm8k"], asked, tmp_path / "out")
    assert [one.in_percent for one in found] == [False, True]
    assert found[0].accuracy == found[0].metrics["perplexity,none"] > 1
    report(console := Console(record=True, width=200), found, tmp_path / "out")
    told = console.export_text()
    assert "scores in percent: gsm8k exact_match,flexible-extract\n" in told
    assert "scores as lm-eval scales them: guess perplexity,none\n" in told


def test_the_model_inside_lm_eval(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Registered under its name, with arguments as text, on a task that compares likelihoods."""
    from lm_eval.api.registry import get_model
    from lm_eval.evaluator import evaluate as lm_evaluate
    from lm_eval.tasks import TaskManager

    import dapd.evaluation.harness.launcher  # noqa: F401

    (tmp_path / "choose.yaml").write_text(CHOICE.format(file=data / "gsm8k" / "test.jsonl"))
    tasks = TaskManager(include_path=str(tmp_path), include_defaults=False).load(["choose"])
    arguments = f"pretrained=random:tiny-llada,strategy=fast-dllm,threshold=0.7,mc_samples=4,out={tmp_path / 'out'}"
    lm = get_model("dapd").create_from_arg_string(arguments, {"batch_size": "2", "device": "cuda:0"})
    assert (lm.setting.strategy.threshold, lm.options.batch, lm.options.mc_samples) == (0.7, 2, 4)
    found = lm_evaluate(lm, tasks, limit=3, bootstrap_iters=0)
    records = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    assert len(records) == 6
    assert all(r["logprob"] < 0 and r["nfe"] == 4 for r in records)
    best = [max((0, 1), key=lambda i, d=doc: next(r for r in records if (r["doc"], r["idx"]) == (d, i))["logprob"])
            for doc in range(3)]  # fmt: skip
    assert found["results"]["choose"]["acc,none"] == pytest.approx(best.count(0) / 3)
    with pytest.raises(DapdError, match="did you mean 'threshold'"):
        get_model("dapd").create_from_arg_string("pretrained=random:tiny-llada,strategy=fast-dllm,treshold=1")


def test_gold_answers_on_the_command_line(data: Path, tmp_path: Path) -> None:
    asked = ["eval", "--gold", "-t", "gsm8k,humaneval", "--shots", "0", "--confirm-run-unsafe-code"]
    table = tmp_path / "gold.csv"
    result = CliRunner().invoke(app, [*asked, "--data-dir", str(data), "--save-table", str(table)])
    assert result.exit_code == 0, result.exception
    head, *rows = csv.reader(table.read_text().splitlines())
    assert head == ["task", "metric", "documents", "score %"]
    assert [(row[0], *row[2:]) for row in rows] == [("gsm8k", "10", "100.00"), ("humaneval", "10", "100.00")]
    assert result.output.count("100.00") == 2
    damaged = write_data(tmp_path)
    path = damaged / "humaneval" / "HumanEval.jsonl"
    path.write_text(path.read_text().replace("f(2) == 3", "f(2) == 4"))
    result = CliRunner().invoke(app, [*asked, "--data-dir", str(damaged)])
    assert str(result.exception) == "gold answers score too low: humaneval 90.00% of 100%"
    assert "--data-dir" in str(CliRunner().invoke(app, asked).exception)


def test_mistakes_on_the_command_line(data: Path, tmp_path: Path) -> None:
    for more, said in (
        (["-s", "dapd"], "unknown strategy"),
        (["--set", "tau"], "field=value"),
        (["--chat", "two_turns"], "chat is 'two_turns'"),
        (["--limit", "0"], "limit is 0"),
        (["--chat", "single_turn"], "no chat template"),
        (["-t", "mbpp"], "--confirm-run-unsafe-code"),
    ):
        result = CliRunner().invoke(
            app,
            [
                "eval",
                "-m",
                "random:tiny-llada",
                "-t",
                "gsm8k",
                "--data-dir",
                str(data),
                "--out",
                str(tmp_path / "o"),
                *more,
            ],
        )
        assert isinstance(result.exception, DapdError)
        assert said in str(result.exception)
    assert not (tmp_path / "o").exists()
