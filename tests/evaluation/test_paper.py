"""`dapd paper`: the published numbers, the cells, and every table from start to end on a tiny random model."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

import dapd
from dapd.cli import paper_figures
from dapd.cli.app import app
from dapd.cli.paper_figures import draw
from dapd.errors import DapdError
from dapd.evaluation.edge_scores import BINS, LOWEST, EdgeCounter
from dapd.evaluation.paper import TABLES, Line, Report, Scope, Study, build, cells, numbers
from dapd.evaluation.paper.tau_min import THRESHOLDS
from dapd.evaluation.parallelbench import GROUPS, Batch, make
from dapd.models import SHAPES
from dapd.mrf import report as mrf
from dapd.mrf.evaluate import Budget
from dapd.strategies import Dapd, Klass
from dapd.trace import Trace, read_traces

ROOT = Path(__file__).parents[2]
PAPER = ROOT.parent / "shared" / "paper.tex"
SHARED = ROOT.parent / "shared" / "data"
ROOM = {"max_length": 8192, "n_layers": 2, "d_model": 16, "n_heads": 2, "n_kv_heads": 2, "d_mlp": 16}


@pytest.fixture(autouse=True)
def long_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random models with room for the long prompts, and otherwise as small as they come."""
    for name in ("tiny-llada", "tiny-dream"):
        monkeypatch.setitem(SHAPES, name, dataclasses.replace(SHAPES[name], **ROOM))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two samples of everything, made up here, in the layout of the data sets' own files."""
    root = tmp_path_factory.mktemp("data")
    sums = [{"question": f"Add {i} and 1.", "answer": f"#### {i + 1}"} for i in range(2)]
    code = {"prompt": "def one():\n", "entry_point": "one", "canonical_solution": "    return 1\n"}
    check = "def check(candidate):\n    assert candidate() == 1\n"
    _write(root / "gsm8k/train.jsonl", sums)
    _write(root / "gsm8k/test.jsonl", sums)
    _write(root / "humaneval/HumanEval.jsonl", [{**code, "task_id": f"made/{i}", "test": check} for i in range(2)])
    mbpp = {"text": "Return 1.", "code": "def one():\n    return 1", "test_list": ["assert one() == 1"] * 3}
    _write(root / "mbpp/mbpp.jsonl", [{**mbpp, "task_id": i, "challenge_test_list": []} for i in (11, 12)])
    problem = {"problem": "1 + 1 = ?", "solution": "It is $\\boxed{2}$.", "answer": "2"}
    _write(root / "math500/test.jsonl", [{**problem, "subject": "Algebra", "level": 1, "unique_id": i} for i in "ab"])
    trivia = [{"id": str(i), "question": f"Who is number {i}?", "aliases": [f"name {i}"]} for i in range(2500)]
    _write(root / "triviaqa/triviaqa_dpr_test.jsonl", trivia)
    make(root / "parallelbench", Batch(samples=2, size=3))
    return root


def _write(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(table: str, data: Path, out: Path, *more: str, model: str = "random:tiny-llada") -> Result:
    arguments = ["paper", "--table", table, "--model", model, "--data-dir", str(data), "--out", str(out)]
    return CliRunner().invoke(app, [*arguments, "--length", "16", "--shots", "0", *more])


def table_of(out: Path, table: str) -> list[dict[str, object]]:
    """The lines of the table that was written last."""
    return list(json.loads(newest(out, table, ".json").read_text())["lines"])


def newest(out: Path, name: str, ending: str) -> Path:
    return max(out.glob(f"{name}*{ending}"), key=lambda path: path.stat().st_mtime_ns)


def names_all_its_files(result: Result, out: Path) -> bool:
    """Whether the last line names whatever the command wrote to its folder, the runs aside."""
    last = result.output.splitlines()[-1].removeprefix("written: ")
    return sorted(last.split(", ")) == sorted(str(path) for path in out.iterdir() if path.is_file())


# --- the published numbers ---


@pytest.mark.skipif(not PAPER.is_file(), reason="the paper's source is not at ../shared")
@pytest.mark.parametrize("table", [name for name in numbers.LABELS if name not in ("toy", "tau_min")])
def test_every_number_stands_in_the_papers_table(table: str) -> None:
    text = PAPER.read_text(encoding="utf-8")
    number = int(numbers.LABELS[table].removeprefix("table ").partition(",")[0])
    at = [found.start() for found in re.finditer(r"\\begin\{table", text)][number - 1]
    body = text[text.index("\\midrule", at) : text.index("\\end{tabular}", at)]
    body = re.sub(
        r"\\(?:rowcolor|multirow|multicolumn|specialrule|cmidrule)(?:\(\w+\))?(?:\{[^}]*\})*|\[[^]]*pt\]", " ", body
    )
    body = re.sub(r"\([\d.]+\$\\times\$\)|blocks?|\d+ *block|\{\*\}", " ", body)
    printed = [float(n) for n in re.findall(r"(?<![\w.-])\d+(?:\.\d+)?(?![\w])", body)]
    ours = {
        "main": [x for m in numbers.MAIN.values() for row in m.values() for pair in row for x in pair],
        "parallelbench": [x for row in numbers.PARALLELBENCH.values() for pair in row for x in pair],
        "eos": [x for m in numbers.EOS.values() for row in m.values() for pair in row for x in pair],
        "tps": [x for row in numbers.TPS.values() for x in row],
        "long": [x for rows in numbers.LONG.values() for length, row in rows.items() for x in (length, *row)],
        "blocks": [x for (_, n), row in numbers.BLOCKS.items() for x in (n, *row)],
        "multi": [x for row in numbers.MULTI.values() for x in row],
    }[table]
    assert printed == ours


def test_cells_are_the_papers_settings() -> None:
    main = {(c.method, c.task): c for c in cells.main("llada")}
    assert len(main) == 25
    assert main["dapd-staged", "gsm8k"].setting.strategy == Dapd(0.01, 0.05)
    assert main["dapd-direct", "mbpp"].setting.strategy == Dapd(0.01, 0.02, shortcut="direct")
    assert main["klass", "gsm8k"].setting.strategy == Klass(0.6, 0.015)
    assert {c.setting.n_blocks for c in main.values() if "dapd" not in c.method} == {4}
    assert {c.setting.n_blocks for c in main.values() if "dapd" in c.method} == {1}
    assert {c.setting.n_blocks for c in cells.main("dream")} == {1}
    assert main["fast-dllm", "mbpp"].published == {"accuracy": 20.6, "steps": 41.5}

    eos = list(cells.eos("llada"))
    assert len(eos) == 45
    assert {(c.eos, c.setting.n_blocks) for c in eos if "EOS-Inf" in c.row} == {("ban", 1), ("defer", 1)}
    assert {c.task for c in eos if c.eos == "ban"} == {"humaneval"}
    assert {c.setting.n_blocks for c in eos if c.row.endswith("4 blocks")} == {4}
    assert eos[0].loop.sampling.eos == "none"
    assert [c.setting.n_blocks for c in cells.blocks("llada")] == [1, 4, 8, 16, 4, 4, 4]
    assert [c.length for c in cells.long("llada")] == [256, 512, 1024] * 2


def test_tables_share_cells_and_different_settings_do_not() -> None:
    every = [c for build_ in cells.TABLES.values() for c in build_("llada")]
    by_key: dict[str, set[str]] = {}
    for c in every:
        said = str((c.task, c.length, c.setting, c.eos))
        by_key.setdefault(c.key, set()).add(said)
    assert all(len(found) == 1 for found in by_key.values())
    assert len(by_key) == len({str((c.task, c.length, c.setting, c.eos)) for c in every})
    assert len(by_key) < len(every)


# --- every table, end to end ---


def test_lm_eval_tables(data: Path, tmp_path: Path) -> None:
    """All of them in one folder: what one table has decoded, the next does not decode again."""
    code = ("--confirm-run-unsafe-code", "--limit", "1")
    first = run("main", data, tmp_path, "--only", "klass,dapd-staged,humaneval,mbpp,gsm8k,math500", *code)
    assert first.exit_code == 0, first.output
    assert len(table_of(tmp_path, "main")) == 8
    assert "| GSM8K | DAPD-Staged | 1 |" in newest(tmp_path, "main", ".md").read_text()
    assert "71.7" in first.output
    assert "not comparable" in first.output
    assert newest(tmp_path, "main", ".png").stat().st_size > 5000
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("results.jsonl")}
    for table, only, n in (
        ("tps", "klass,dapd-staged,original", 3),
        ("blocks", "klass,dapd-staged", 5),
        ("long", "gsm8k", 3),
        ("eos", "klass,gsm8k", 3),
    ):
        result = run(table, data, tmp_path, "--only", only, *code)
        assert result.exit_code == 0, result.output
        assert len(table_of(tmp_path, table)) == n
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    rows = {(line["row"], line["column"]): line for line in table_of(tmp_path, "eos")}
    assert rows["KLASS, 1 block + EOS-Inf", "GSM8K"]["published"] == {"accuracy": 64.8, "steps": 124.4}
    assert all("steps" in line["extra"] for line in table_of(tmp_path, "blocks"))  # type: ignore[operator]
    assert {line["row"] for line in table_of(tmp_path, "blocks")} >= {"DAPD-Staged, 16 blocks", "KLASS, 4 blocks"}


def test_dream_has_its_own_settings(data: Path, tmp_path: Path) -> None:
    result = run("main", data, tmp_path, "--only", "dapd-staged,gsm8k", model="random:tiny-dream")
    assert result.exit_code == 0, result.output
    (line,) = table_of(tmp_path, "main")
    assert line["published"] == {"accuracy": 56.0, "steps": 69.5}
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["gsm8k_16_dapd_staged-0.005-0.05_1b"]
    refused = run("tps", data, tmp_path, model="random:tiny-dream")
    assert isinstance(refused.exception, DapdError)
    assert "for LLaDA only" in str(refused.exception)


@pytest.mark.skipif(not SHARED.is_dir(), reason="IFEval and its word lists are not at ../shared/data")
def test_ifeval(tmp_path: Path) -> None:
    result = run("main", SHARED, tmp_path, "--only", "fast-dllm,ifeval", "--limit", "1")
    assert result.exit_code == 0, result.output
    assert table_of(tmp_path, "main")[0]["n"] == 1


def test_parallelbench(data: Path, tmp_path: Path) -> None:
    result = run("parallelbench", data, tmp_path, "--only", "waiting_line,puzzle", "--limit", "1")
    assert result.exit_code == 0, result.output
    lines = table_of(tmp_path, "parallelbench")
    assert len(lines) == 10
    assert {line["n"] for line in lines} == {2, 10}
    assert "latin_square_n4" in lines[1]["extra"]  # type: ignore[operator]
    assert newest(tmp_path, "parallelbench", ".png").is_file()
    # Groups whose files are not there are an error, not a silent gap.
    missing = run("parallelbench", data, tmp_path)
    assert isinstance(missing.exception, DapdError)
    assert "words_to_sentence" in str(missing.exception)


@pytest.mark.skipif(not SHARED.is_dir(), reason="ParallelBench's released files are not at ../shared/data")
def test_parallelbench_with_texts(tmp_path: Path) -> None:
    result = run("parallelbench", SHARED, tmp_path, "--only", "dapd-staged", "--limit", "1")
    assert result.exit_code == 0, result.output
    assert [line["column"] for line in table_of(tmp_path, "parallelbench")] == [g.title for g in GROUPS.values()]
    assert "bertscore is not scored" in result.output


def test_multi(data: Path, tmp_path: Path) -> None:
    result = run("multi", data, tmp_path, "--limit", "1")
    assert result.exit_code == 0, result.output
    lines = table_of(tmp_path, "multi")
    assert [line["row"] for line in lines] == [numbers.TITLES[method] for method in numbers.MULTI]
    assert lines[0]["ours"]["steps"] == 16.0  # type: ignore[index]
    assert "the authors' is not published" in result.output
    figure = json.loads(newest(tmp_path, "multi_behaviour", ".json").read_text())
    assert len(figure["klass"]["behaviour"]["unmasked"][0]) == 16
    for name in ("heatmap", "segments", "trajectories_1", *(f"states_{method}" for method in numbers.MULTI)):
        assert newest(tmp_path, f"multi_{name}", ".png").stat().st_size > 5000
    assert names_all_its_files(result, tmp_path)
    more = run("multi", data, tmp_path, "--limit", "1", "--sweep", "--only", "eb-sampler", "--no-plot")
    assert more.exit_code == 0, more.output
    assert "the most accurate of its sweep" in more.output
    assert len(list((tmp_path / "runs").glob("multi_16_entropybound_*"))) == 4


def test_figures_of_multi_show_the_bundles_of_the_table(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each method completes a batch in another order, and its folder may hold bundles beyond the limit."""
    drawn: dict[str, list[list[Trace]]] = {"heatmap": [], "trajectory": []}
    for name, kept in drawn.items():
        monkeypatch.setattr(paper_figures, name, lambda traces, *_, kept=kept, **__: kept.append(traces))
    methods = ("--only", "fast-dllm,klass", "--batch", "3")
    assert run("multi", data, tmp_path, *methods, "--limit", "3", "--no-plot").exit_code == 0
    assert run("multi", data, tmp_path, *methods, "--limit", "2").exit_code == 0
    figure = json.loads(newest(tmp_path, "multi_behaviour", ".json").read_text())
    assert [len(traces) for traces in drawn["heatmap"]] == [2 * 2]
    for number, traces in enumerate(drawn["trajectory"]):
        for trace, result in zip(traces, figure.values(), strict=True):
            whole = read_traces(tmp_path / result["folder"] / "traces" / f"{number}.jsonl")[0]
            first = whole.start
            assert [s.positions for s in trace.steps] == [[p - first for p in s.positions] for s in whole.steps]


def test_part_of_multi_is_a_full_table(data: Path, tmp_path: Path) -> None:
    """The speedup stands in the table although the method that it is measured against is not run."""
    result = run("multi", data, tmp_path, "--limit", "1", "--only", "klass", "--save-table", str(tmp_path / "t.csv"))
    assert result.exit_code == 0, result.output
    [line] = table_of(tmp_path, "multi")
    assert line["ours"]["speedup"] == 16 / line["ours"]["steps"]  # type: ignore[index]
    assert line["published"] == {"accuracy": 52.2, "steps": 177.4, "speedup": 1.44}
    head, row = (tmp_path / "t.csv").read_text().splitlines()
    assert head.endswith("speedup ours,speedup paper")
    assert row.endswith(",1.44")


def test_tau_min(data: Path, tmp_path: Path) -> None:
    result = run("tau_min", data, tmp_path, "--limit", "2", "--settings", "dream")
    assert result.exit_code == 0, result.output
    found = json.loads(newest(tmp_path, "tau_min_histogram", ".json").read_text())
    # Sixteen masks, one fewer at each step: sum of n (n - 1) over two prompts.
    assert found["pairs"] == 2 * sum(n * (n - 1) for n in range(17)) == torch.tensor(found["counts"]).sum()
    assert "0.005 (tau_min)" in result.output
    assert newest(tmp_path, "tau_min", ".png").is_file()
    assert names_all_its_files(result, tmp_path)


def test_toy(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = dataclasses.replace(mrf.QUICK_OPTIONS, budget=Budget(n_paths=4, n_samples=20), n_decoded=4)
    monkeypatch.setattr(mrf, "QUICK_OPTIONS", quick)
    result = run("toy", data, tmp_path, "--limit", "1")
    assert result.exit_code == 0, result.output
    assert "AUC" in newest(tmp_path, "toy", ".md").read_text()


@pytest.mark.parametrize(
    ("table", "only"),
    [
        ("main", "original,dapd-staged,gsm8k,humaneval,mbpp,math500"),
        ("tps", "original,klass"),
        ("blocks", "dapd-staged"),
        ("long", "gsm8k"),
        ("eos", "klass,gsm8k"),
        ("multi", "original,dapd-staged"),
        ("tau_min", ""),
        ("parallelbench", "dapd-staged,waiting_line,puzzle"),
    ],
)
def test_every_table_on_the_lab_model(table: str, only: str, data: Path, tmp_path: Path) -> None:
    """The trained model that ships, which leaves out what it cannot read: the numbers mean nothing, the way does."""
    more = ["--only", only] if only else []
    if table != "blocks":  # which has up to sixteen
        more += ["--length", "8"]
    more += ["--confirm-run-unsafe-code", "--limit", "1", "--no-plot"]
    result = run(table, data, tmp_path, *more, model="lab:any-text")
    assert result.exit_code == 0, result.output
    if table != "tau_min":
        lines = table_of(tmp_path, table)
        assert lines
        assert all(line["n"] for line in lines)
        assert all(1 <= line["ours"]["steps"] <= 64 for line in lines if "steps" in line["ours"])  # type: ignore[index, operator]


def test_edges_are_counted_by_hand() -> None:
    counter = EdgeCounter(THRESHOLDS)
    counter.count(torch.tensor([1.0, 0.0, 0.004, 0.2]), 0.5)
    assert counter.counts.sum(-1).tolist() == [0, 4, 0]
    assert counter.counts[1, 0] == 1
    assert counter.counts[1, BINS - 1] == 1
    assert counter.counts[1, int((torch.tensor(0.004).log10() - LOWEST) / -LOWEST * BINS)] == 1
    assert counter.below.tolist() == [1, 2, 2, 2, 2, 2, 2, 2, 3]
    counter.clear()
    assert counter.counts.sum() == 0


# --- killed and taken up again ---

KILLED = """
import dataclasses
from dapd.models import SHAPES
from dapd.mrf import report as mrf
from dapd.mrf.evaluate import Budget
SHAPES["tiny-llada"] = dataclasses.replace(SHAPES["tiny-llada"], **{room})
from dapd.cli import main
main()
"""


def test_killed_in_the_middle_gives_the_same_table(data: Path, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    only = ("--only", "dapd-staged,waiting_line", "--no-plot", "--length", "32")
    assert run("parallelbench", data, whole, *only).exit_code == 0
    arguments = ["paper", "-t", "parallelbench", "-m", "random:tiny-llada", "--data-dir", str(data), *only]
    script = tmp_path / "killed.py"
    script.write_text(KILLED.format(room=ROOM))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), *arguments, "--shots", "0", "--out", str(killed)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while len(list(killed.rglob("results.jsonl"))) < 3 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not list(killed.glob("*.md"))
    assert run("parallelbench", data, killed, *only).exit_code == 0
    tables = [newest(folder, "parallelbench", ".md").read_text() for folder in (whole, killed)]
    assert tables[0] == tables[1]


def test_another_setup_is_refused_and_nothing_is_overwritten(data: Path, tmp_path: Path) -> None:
    only = ("--only", "fast-dllm,puzzle", "--limit", "1")
    assert run("parallelbench", data, tmp_path, *only).exit_code == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    other = run("parallelbench", data, tmp_path, *only, "--settings", "llada", model="random:tiny-dream")
    assert isinstance(other.exception, DapdError)
    assert "of another set-up (model: 'random:tiny-llada' there" in str(other.exception)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


# --- what is refused ---


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-t", "mian"], "unknown table 'mian'; did you mean 'main'"),
        (["-t", "main", "--only", "gsm9k"], "did you mean 'gsm8k'"),
        (["-t", "main", "--settings", "lada"], "did you mean 'llada'"),
        (["-t", "main", "--chat", "multiturn"], "did you mean 'multi_turn'"),
        (["-t", "main", "--limit", "0"], "limit is 0"),
        (["-t", "main", "--length", "0"], "length is 0"),
        (["-t", "multi", "--batch", "0"], "batch is 0"),
        (["-t", "multi", "--only", "dapd-direct"], "nothing is left of the table"),
        (["-t", "multi", "--only", "gsm8k"], "it has original, fast-dllm, klass"),
        (["-t", "tau_min", "--only", "klass"], "tau_min is run as a whole; leave out --only"),
        (["-t", "tps", "--only", "words"], "nothing is left"),
        (["-t", "parallelbench", "--only", "gsm8k"], "nothing is left"),
        (["-t", "parallelbench"], "cannot be fetched"),
        (["-t", "multi", "--data-dir", "nowhere"], "nowhere: there is no such folder"),
        (["-t", "multi", "--data-dir", "."], "cannot read"),
    ],
)
def test_bad_input(arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["paper", *arguments, "--out", "out"])
    assert isinstance(result.exception, DapdError)
    assert words in str(result.exception)
    assert not list(tmp_path.rglob("*.json*"))


def test_code_needs_the_confirmation(data: Path, tmp_path: Path) -> None:
    result = run("tps", data, tmp_path, "--limit", "1")
    assert isinstance(result.exception, DapdError)
    assert "confirm" in str(result.exception)


# --- reports ---


def test_report_says_what_is_not_scored() -> None:
    line = Line("A", "T", 3, {"score": None, "steps": 2.5}, {"score": 50.0, "steps": 2.0}, {"part": None, "other": 1.0})
    text = Report("x", "tab:x", (line,), ("a note",)).to_markdown()
    assert "| T | A | 3 | not scored | 50.0 | 2.5 | 2.0 |" in text
    assert "- A, T: part not scored, other 1.0" in text
    assert text.endswith("- a note\n")


def test_every_label_has_a_table_and_a_command() -> None:
    assert set(TABLES) == set(numbers.LABELS)
    commands = (ROOT / "docs" / "reproduce.md").read_text()
    assert [name for name in TABLES if f"dapd paper --table {name}" not in commands] == []


def test_build_from_python(data: Path, tmp_path: Path) -> None:
    study = Study(dapd.load("random:tiny-llada", device="cpu"), tmp_path, data, scope=Scope(1, 8, ("original",)))
    report = build("multi", study)
    assert [line.row for line in report.lines] == ["Original"]
    assert (tmp_path / "multi_original_first1_8tokens.md").is_file()  # a part does not take the whole table's name
    assert not (tmp_path / "multi.md").exists()
    assert Scope().suffix == ""
    assert draw(Report("tps", "", ()), study) == []
    with pytest.raises(DapdError, match="unknown table"):
        build("tables", study)
