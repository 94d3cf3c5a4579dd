"""Strategies and models of the user's own through the commands, and what is said where there is none."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from dapd.cli import guarded, main
from dapd.cli.app import app
from dapd.errors import DapdError
from dapd.generation import load
from dapd.io.own import crash, find, is_own
from dapd.own_models import load_named
from dapd.scale.work import Failure
from dapd.settings import named, read_settings, setting
from dapd.strategies import Threshold

SOURCE = '''
from dataclasses import dataclass
import dapd

@dataclass(frozen=True)
class Two:
    """The two surest positions."""
    count: int = 2

    def select(self, seen, memory=None, /):
        score = seen.confidence.masked_fill(~seen.masked, -1.0)
        best = score.topk(min(self.count, score.shape[-1]), -1).indices
        commit = seen.masked.new_zeros(seen.masked.shape).scatter(-1, best, True) & seen.masked
        return dapd.Selection(commit)

class Fussy:
    def __init__(self, what):
        pass

ready = dapd.strategy("fast-dllm", threshold=0.5)
number = 3
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_rules.py").write_text(SOURCE, encoding="utf-8")
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.mark.parametrize("name", ["my_rules:Two", "my_rules.py:Two", "./my_rules.py:Two"])
def test_by_module_and_by_file(here: Path, name: str) -> None:
    chosen, options = read_settings(f"{name}:count=3,block_length=8", ["temperature=0.5"])
    assert type(chosen.strategy).__name__ == "Two"
    assert vars(chosen.strategy) == {"count": 3}
    assert options.block_length == 8
    assert options.sampling.temperature == 0.5


def test_an_object_is_taken_as_it_is(here: Path) -> None:
    assert named("my_rules:ready").strategy == Threshold(0.5)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("my_rules:Nothing", "has no 'Nothing'"),
        ("my_rules:number", "no method `select`"),
        ("my_rules:Fussy", "cannot be called without 'what'; give it a default"),
        ("no_such_module:Two", "cannot be imported: ModuleNotFoundError"),
        ("absent.py:Two", "there is no file absent.py"),
        ("my_rules.py", "say what to take from it, as in my_rules.py:NAME"),
        ("my_rules.py:", "say what to take from it, as in my_rules.py:NAME"),
        ("folder:Two", "folder is a folder of modules; name one of them, as in folder.my_module:Mine"),
        ("builtins:dict", "does not say which arguments it takes"),
        ("original:k", "in 'original:k', 'k' is not of the form field=value"),
        ("fast-dllm:threshold", "in 'fast-dllm:threshold', 'threshold' is not of the form field=value"),
        ("klass@llada/gsm8k:kl", "'kl' is not of the form field=value"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(here: Path, name: str, words: str) -> None:
    with pytest.raises(DapdError, match=words):
        named(name)


def test_a_file_that_cannot_be_imported(here: Path) -> None:
    (here / "broken.py").write_text("import no_such_thing\n", encoding="utf-8")
    with pytest.raises(
        DapdError, match=r"broken.py cannot be imported: ModuleNotFoundError: No module named .* \(broken.py, line 1\)"
    ):
        find("broken.py:Two")


def test_a_plain_class_is_told_to_become_a_dataclass(here: Path) -> None:
    (here / "plain.py").write_text("class Plain:\n    k = 2\n    def select(self, seen, memory=None, /): ...\n")
    with pytest.raises(DapdError, match="Plain has no fields to set; make it a dataclass"):
        read_settings("plain.py:Plain:k=3", [])


def test_a_file_imports_its_neighbours(tmp_path: Path) -> None:
    """As `python FILE` does, when it is read and when its function is called; the path is as before afterwards."""
    (tmp_path / "own_rules_beside.py").write_text("threshold = 0.25\n", encoding="utf-8")
    (tmp_path / "own_late_beside.py").write_text("name = 'fast-dllm'\n", encoding="utf-8")
    file = tmp_path / "own_rules.py"
    file.write_text(
        "import dapd\nfrom own_rules_beside import threshold\n\n"
        "def rule():\n    from own_late_beside import name\n    return dapd.strategy(name, threshold=threshold)\n",
        encoding="utf-8",
    )
    before = list(sys.path)
    assert named(f"{file}:rule").strategy == Threshold(0.25)
    assert sys.path == before


def test_a_failed_import_is_told_by_the_users_own_line(here: Path) -> None:
    with pytest.raises(DapdError) as caught:
        find("no_such_module:Two")
    assert str(caught.value).endswith("ModuleNotFoundError: No module named 'no_such_module'")
    source = "import importlib\nimportlib.import_module('no_such_module')\n"
    (here / "roundabout.py").write_text(source, encoding="utf-8")
    with pytest.raises(DapdError, match=r"No module named 'no_such_module' \(roundabout.py, line 2\)"):
        find("roundabout.py:Two")
    (here / "wrong_json.py").write_text("import json\n\njson.loads('{')\n", encoding="utf-8")
    with pytest.raises(DapdError, match=r"wrong_json.py cannot .* JSONDecodeError: .* \(wrong_json.py, line 3\)"):
        find("wrong_json.py:Two")


BROKEN = """
import dapd
from my_shelf import fetch

class Broken:
    def select(self, seen, memory=None):
        return dapd.Selection(fetch({}))
"""
SHELF = """
def fetch(things):
    return things["missing"]
"""


def ends(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run the program's own entry, which must end with code 2; what it says."""
    monkeypatch.setattr(sys, "argv", ["dapd", *words, "-m", "random:tiny-llada", "--device", "cpu"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("name", ["broken.py:Broken", "broken:Broken"])
def test_a_crash_is_told_by_the_users_own_lines(
    name: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "broken.py").write_text(BROKEN, encoding="utf-8")
    (here / "my_shelf.py").write_text(SHELF, encoding="utf-8")
    command = ["generate", "abc", "-n", "8", "-s", name]
    assert ends(monkeypatch, capsys, *command).splitlines() == [
        "error: Broken.select failed: KeyError: 'missing'",
        "  broken.py, line 7, in Broken.select: return dapd.Selection(fetch({}))",
        '  my_shelf.py, line 3, in fetch: return things["missing"]',
        "  (DAPD_TRACEBACK=1 shows the whole traceback)",
    ]
    monkeypatch.setenv("DAPD_TRACEBACK", "1")
    with pytest.raises(KeyError):
        main()
    for module in ("broken", "my_shelf"):  # files of the same name in another folder are other modules
        sys.modules.pop(module, None)


@pytest.mark.slow
def test_a_crash_at_a_worker_is_told_by_the_same_lines(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "far.py").write_text(BROKEN.replace("from my_shelf import fetch", SHELF.strip()), encoding="utf-8")
    prompts = here / "prompts.jsonl"
    prompts.write_text('{"prompt": "abc", "answer": "d"}\n', encoding="utf-8")
    command = ["compare", "-t", str(prompts), "-n", "8", "-s", "far:Broken", "--out", str(here / "out")]
    told = [
        "error: Broken.select failed: KeyError: 'missing'",
        "  far.py, line 8, in Broken.select: return dapd.Selection(fetch({}))",
        '  far.py, line 4, in fetch: return things["missing"]',
        "  (DAPD_TRACEBACK=1 shows the whole traceback)",
    ]
    assert ends(monkeypatch, capsys, *command).splitlines() == told
    assert ends(monkeypatch, capsys, *command, "--workers", "2").splitlines() == told


def test_a_failure_that_travelled_keeps_its_lines_and_its_traceback(here: Path) -> None:
    (here / "alone.py").write_text(BROKEN.replace("from my_shelf import fetch", SHELF.strip()), encoding="utf-8")
    with pytest.raises(KeyError) as crashed:
        named("alone.py:Broken").strategy.select(None)  # type: ignore[arg-type]
    failure = Failure.of(crashed.value)
    assert failure.reason == "KeyError: 'missing' (alone.py, line 4)"
    error = pickle.loads(pickle.dumps(failure)).error()
    assert crash(error) == crash(crashed.value) == str(error)
    assert "alone.py" in str(crash(error))
    [note] = error.__notes__
    assert "Traceback" in note
    assert 'return things["missing"]' in note
    assert str(Failure.of(DapdError("no room")).error()) == "no room"


def test_a_crash_in_a_batch_names_the_users_own_line(here: Path) -> None:
    (here / "alone.py").write_text(BROKEN.replace("from my_shelf import fetch", SHELF.strip()), encoding="utf-8")
    (here / "prompts.jsonl").write_text('{"prompt": "abc"}\n', encoding="utf-8")
    done = CliRunner().invoke(
        app, ["batch", "prompts.jsonl", "texts.jsonl", "-s", "alone.py:Broken", "-m", "random:tiny-llada", "-n", "8"]
    )
    assert done.exit_code == 1
    [row] = (here / "texts.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(row) == {"id": 0, "error": "KeyError: 'missing' (alone.py, line 4)"}


def test_an_error_of_our_own_keeps_its_traceback(here: Path) -> None:
    """Even where code of the user's own was read: it was not running."""
    named("my_rules.py:Two")
    with pytest.raises(ZeroDivisionError):
        guarded(lambda: print(1 / 0))


def test_only_commands_read_such_names(here: Path) -> None:
    """A server gets names of strategies from strangers: no module of theirs may be opened."""
    with pytest.raises(DapdError, match="unknown strategy"):
        setting("my_rules:Two")
    assert not is_own("dapd-staged@llada/gsm8k")
    assert not is_own("fast-dllm")


def test_through_the_commands(here: Path) -> None:
    model = ["-m", "random:tiny-llada", "--device", "cpu"]
    run = CliRunner().invoke
    done = run(app, ["generate", "abc", *model, "-s", "my_rules:Two", "-n", "8", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["nfe"] == 4
    done = run(app, ["generate", "abc", *model, "-s", "my_rules.py:Two:count=4", "-n", "8", "--json"])
    assert json.loads(done.stdout)["nfe"] == 2
    done = run(app, ["compare", *model, "-s", "my_rules:Two:count=2/4", "-t", "shuffle", "-p", "1", "--no-plot"])
    assert done.exit_code == 0, done.output
    assert "count=4" in done.output
    bench = ["--prompt", "8", "--gen", "16", "--strategies", "my_rules:Two", "--repeats", "1", "--warmup", "0"]
    done = run(app, ["bench", "step", *model, *bench])
    assert done.exit_code == 0, done.output
    assert "my_rules:Two" in done.output
    assert "count" in run(app, ["strategies", "my_rules:Two"]).output


EXAMPLE = Path(__file__).parents[1] / "examples" / "my_model.py"

MODELS = """
import torch
import dapd

class Net(torch.nn.Module):
    profile = dapd.Profile(mask_id=256, eos_id=257, pad_id=257)
    vocab_size, n_layers, max_length, lookback, graphable = 258, 0, 64, 0, False
    device = torch.device("cpu")

    def __call__(self, tokens, span, window, *, valid=None, cache=None, capture=None):
        logits = torch.zeros(*tokens[:, window].shape, self.vocab_size)
        logits[..., self.letter] = 9.0
        return dapd.Prediction(logits)

def bare(letter: str = "a", times=1):
    net = Net()
    net.letter = ord(letter) + times - 1
    return net

def pair(letter: str = "a", times=1):
    net = bare(letter, times)
    return net, dapd.ByteTokenizer(net.profile)

def whole(source: str = "random:tiny-llada", device=None, dtype=None):
    return dapd.load(source, device=device, dtype=dtype)

ready = dapd.DiffusionLM(*pair("z"), name="zed")
net = bare("y")

def nothing():
    pass

def half():
    return torch.nn.Linear(2, 2)

def odd_profile():
    net = bare()
    net.profile = {"mask_id": 3}
    return net

def odd_ids():
    net = bare()
    net.profile = dapd.Profile(mask_id=999, eos_id=257, pad_id=257)
    return net

def odd_tokenizer():
    return bare(), str.split

def failing():
    raise RuntimeError("no such weights")

def settled():
    return bare()

def asking(size: int):
    return bare()
"""


@pytest.fixture
def models(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delitem(sys.modules, "my_models", raising=False)
    (here / "my_models.py").write_text(MODELS, encoding="utf-8")
    return here


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("my_models:pair", "aaa"),
        ("my_models.py:pair", "aaa"),
        ("my_models.py:pair:letter=c,times=2", "ddd"),
        ("my_models:ready", "zzz"),
    ],
)
def test_a_model_by_module_and_by_file(models: Path, name: str, text: str) -> None:
    assert load_named(name).generate("x", strategy="fast-dllm", max_new_tokens=3).text == text


def test_a_network_alone_reads_ids(models: Path) -> None:
    for name in ("my_models:bare", "my_models:net"):
        lm = load_named(name)
        assert lm.name == name
        assert len(set(lm.generate([1, 2], strategy="fast-dllm", max_new_tokens=3).ids)) == 1
    with pytest.raises(DapdError, match="comes without a tokenizer"):
        lm.generate("x")


def test_a_value_may_hold_a_colon_and_device_and_dtype_arrive(models: Path) -> None:
    lm = load_named("my_models:whole:source=random:tiny-dream", device="cpu", dtype=torch.float16)
    assert lm.name == "random:tiny-dream"
    assert lm.network.device.type == "cpu"
    assert next(lm.network.parameters()).dtype == torch.float16  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_module:make", "the module no_such_module cannot be imported: ModuleNotFoundError"),
        ("absent.py:make", "there is no file absent.py"),
        ("my_models.py", "say what to take from it, as in my_models.py:NAME"),
        ("my_models.py:", "say what to take from it, as in my_models.py:NAME"),
        ("my_models:missing", "my_models has no 'missing'"),
        ("my_models:nothing", "gave a NoneType without profile, vocab_size"),
        ("my_models:half", "gave a Linear without profile, .*, device, graphable; a model is a dapd.DiffusionLM"),
        ("my_models:MODELS", "has no 'MODELS'"),
        ("my_models:odd_profile", "must be a dapd.Profile"),
        ("my_models:odd_ids", "mask_id is 999, outside of the vocabulary"),
        ("my_models:odd_tokenizer", "without has_chat, special_ids, .*"),
        ("my_models:failing", r"my_models:failing failed: RuntimeError: no such weights \(my_models.py, line \d+\)"),
        ("my_models:asking", "cannot be called without 'size'"),
        ("my_models:asking:size=big", "size is 'big'; it must be a whole number"),
        ("my_models:pair:leter=b", "unknown argument of my_models:pair 'leter'; did you mean 'letter'"),
        ("my_models:settled:letter=b", "unknown argument of my_models:settled 'letter'; allowed: none"),
        ("my_models:ready:letter=b", "is not a function, so that letter cannot be set"),
        ("torch:float32", "gave a dtype without profile"),
    ],
)
def test_what_is_wrong_with_a_model_is_said_in_a_line(models: Path, name: str, words: str) -> None:
    with pytest.raises(DapdError, match=words) as caught:
        load_named(name)
    assert "\n" not in str(caught.value)


def test_a_misspelt_lab_is_no_module(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(models)])
    monkeypatch.delitem(sys.modules, "lab", raising=False)  # these tests have a folder of that name
    for name in ("lab:any_text", "lab:any"):
        with pytest.raises(DapdError, match=f"unknown model '{name}': no such folder; did you mean 'lab:any-text'?"):
            load_named(name)


def test_options_that_would_be_ignored_are_refused(models: Path) -> None:
    with pytest.raises(DapdError, match="is on cpu, not on cuda; give my_models:pair a parameter `device`"):
        load_named("my_models:pair", device="cuda")
    with pytest.raises(DapdError, match="my_models:pair has no parameter `dtype`"):
        load_named("my_models:pair", dtype=torch.float16)
    with pytest.raises(DapdError, match="fp8 is for"):
        load_named("my_models:pair", fp8=True)


def test_only_commands_read_names_of_models(models: Path) -> None:
    for name in ("my_models:pair", "my_models.py:pair"):
        with pytest.raises(DapdError, match="unknown model"):
            load(name)
    assert "my_models" not in sys.modules


def test_a_model_through_the_commands(models: Path) -> None:
    model = ["-m", f"{EXAMPLE}:letters:reach=5"]
    run = CliRunner().invoke
    done = run(app, ["generate", *model, "--template", "the [MASK*4] and [MASK*3] queen", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["text"].endswith(" and the queen")
    done = run(app, ["generate", "the king", *model, "-n", "24", "-s", "dapd-direct", "--json"])
    told = json.loads(done.stdout)
    assert told["nfe"] < told["generated_tokens"] == 24
    done = run(app, ["compare", *model, "-s", "fast-dllm", "-t", "shuffle", "-p", "1", "--no-plot"])
    assert done.exit_code == 0, done.output
    setup = json.loads((models / "compare" / "summary.json").read_text(encoding="utf-8"))["setup"]
    assert setup["model"] == model[1]
    done = run(app, ["plot", "edges", *model, "--prompt", "the king", "-n", "16", "-o", "edges.png"])
    assert done.exit_code == 0, done.output
    done = run(app, ["bench", "step", "-m", "my_models:whole", "--gen", "16", "--prompt", "8", "--repeats", "1"])
    assert done.exit_code == 0, done.output
    with pytest.raises(DapdError, match="has no chat template"):
        run(app, ["chat", *model], catch_exceptions=False)
