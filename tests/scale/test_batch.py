"""Rows in, results out: what a row may say, what is refused, and what another start of a job finds done."""

import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import dapd
from dapd.errors import DapdError
from dapd.evaluation.runs import Record
from dapd.io.files import alone_in
from dapd.scale import files
from dapd.scale.batch import COLUMNS, parts_of
from scale.jobs import MODEL, batch, results, write_prompts

MIXED = [
    '{"id": "plain", "prompt": "Say hello"}',
    '{"prompt": "And again", "max_new_tokens": 8.0, "seed": 3, "temperature": 0.5, "suppress": [1, 2], "answer": 5}',
    '"a text alone"',
    "",
    '{"id": 70, "template": "It is [MASK*3]."}',
    '{"id": "answer", "template": "It is [MASK*3].", "prompt": "What?"}',
]
BAD = {
    '{"id": "broken", ': "not JSON",
    '{"id": "empty"}': "is not a prompt",
    '{"id": "long", "prompt": "x", "max_new_tokens": 5000}': "the canvas is 5001 tokens long",
    '{"id": "words", "prompt": "x", "max_new_tokens": "many"}': "must be a whole number",
    '{"id": "hot", "prompt": "x", "temperature": "hot"}': "temperature is 'hot'",
    '{"id": "no masks", "template": "It is."}': "no [MASK]",
    '{"id": ["a"], "prompt": "x"}': "id is ['a']",
    '{"id": "both", "prompt": "x", "messages": [{"role": "user", "content": "y"}]}': "both a prompt and messages",
    '{"id": "half", "prompt": "\\ud800"}': "surrogates not allowed",
    '[{"role": "user", "content": "x"}]': "no chat template",
}


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_rows_of_every_kind_have_a_result_each_in_their_order(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", [*MIXED, *BAD])
    done = batch(source, tmp_path / "out.jsonl")
    assert done.exit_code == 0, done.output
    assert "columns of the input that are ignored: answer" in done.output
    assert f"15 results, {len(BAD)} of them with an error" in " ".join(done.output.split())
    assert "the first error, in row 5: not JSON: Expecting property name" in done.output
    found = results(tmp_path / "out.jsonl")
    good, bad = found[:5], found[5:]
    assert [one["id"] for one in good] == ["plain", 1, 2, 70, "answer"]
    lm = dapd.load(MODEL, device="cpu")
    alone = lm.generate("And again", max_new_tokens=8, early_stop=True, seed=3, temperature=0.5, suppress=(1, 2))
    assert good[1] == {
        "id": 1,
        "text": alone.text,
        "finish_reason": alone.finish_reason,
        "passes": alone.nfe,
        "tokens": alone.n_generated,
    }
    assert good[3]["text"] == lm.infill("It is [MASK*3].").text
    assert good[4]["text"] == lm.infill("It is [MASK*3].", prompt="What?").text
    for (line, reason), one in zip(BAD.items(), bad, strict=True):
        assert one.keys() == {"id", "error"}, line
        assert reason in one["error"], line


def test_a_job_without_any_text_does_not_pass_for_a_good_one(tmp_path: Path) -> None:
    source, output = (
        write(tmp_path / "in.jsonl", ['{"id": "a", "question": "x"}', '{"id": "b"}']),
        tmp_path / "out.jsonl",
    )
    for start in ("the first time", "when all is done"):
        done = batch(source, output)
        assert done.exit_code == 1, start
        assert "2 results, 2 of them with an error" in done.output
        assert "the first error, in row 'a': the row" in done.output
    assert [one["id"] for one in results(output)] == ["a", "b"]


def test_a_row_has_the_same_text_in_any_order_and_company(tmp_path: Path) -> None:
    source = write_prompts(tmp_path / "in.jsonl", 12)
    turned = write(tmp_path / "turned.jsonl", source.read_text().splitlines()[::-1])
    assert batch(source, tmp_path / "one.jsonl").exit_code == 0
    assert batch(turned, tmp_path / "two.jsonl", "--batch", "1").exit_code == 0
    first = results(tmp_path / "one.jsonl")
    assert results(tmp_path / "two.jsonl") == first[::-1]
    assert batch(source, tmp_path / "three.jsonl", "--set", "seed=1").exit_code == 0
    changed = [a["id"] for a, b in zip(first, results(tmp_path / "three.jsonl"), strict=True) if a != b]
    assert changed == ["q0", "q5", "q10"], "the seed is for the rows that draw, and for all of them"


def test_parquet_in_and_out(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    source = write(tmp_path / "in.jsonl", [*MIXED, '{"id": "bad"}'])
    assert batch(source, tmp_path / "lines.jsonl").exit_code == 0
    assert batch(source, tmp_path / "out.parquet").exit_code == 0
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table.column_names == list(COLUMNS)
    lines = results(tmp_path / "lines.jsonl")
    stored = [{k: v for k, v in row.items() if k != "seconds" and v is not None} for row in table.to_pylist()]
    assert stored == [{**line, "id": str(line["id"])} for line in lines], "numbers and texts in one column are texts"
    rooms: dict[int, int | None] = {7: None, 9: 8}
    rows = [{"id": number, "prompt": "a", "max_new_tokens": room} for number, room in rooms.items()]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "in.parquet")
    write(tmp_path / "same.jsonl", [json.dumps(row) for row in rows])
    # As pandas writes whole numbers beside a missing one.
    floats = pyarrow.table({"id": [7.0, 9.0], "prompt": ["a", "a"], "max_new_tokens": [None, 8.0]})
    parquet.write_table(floats, tmp_path / "floats.parquet")
    for name in ("in.parquet", "same.jsonl", "floats.parquet"):
        assert batch(tmp_path / name, tmp_path / f"{name}.jsonl").exit_code == 0
        assert results(tmp_path / f"{name}.jsonl") == results(tmp_path / "in.parquet.jsonl")
    assert [one["id"] for one in results(tmp_path / "in.parquet.jsonl")] == [7, 9]


def test_numbers_that_no_column_holds_are_written_as_texts(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow.parquet")
    rows = [{"id": 2**70, "text": "a"}, {"id": 1, "text": "b"}]
    path = files.write(tmp_path / "out.parquet", rows, {"id": int, "text": str})
    assert files.read(path) == [{"id": str(2**70), "text": "a"}, {"id": "1", "text": "b"}]


def test_parquet_files_of_results_fit_together(tmp_path: Path) -> None:
    """Whatever is missing in them: the errors of a good job, the texts of one without any."""
    parquet = pytest.importorskip("pyarrow.parquet")
    rows: list[Record] = [{"id": 1, "text": "a", "seconds": 0.5}, {"id": 2, "error": "no prompt"}]
    schemas = [parquet.read_schema(files.write(tmp_path / f"{row['id']}.parquet", [row], COLUMNS)) for row in rows]
    assert schemas[0].equals(schemas[1])


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (['{"id": "a", "prompt": "x"}', '{"prompt": "y"}', '{"id": "a", "prompt": "z"}'], "the id 'a' (rows 0, 2"),
        (['{"id": 1, "prompt": "x"}', '{"prompt": "y"}'], "the id 1 (rows 0, 1"),
        ([""], "holds no rows"),
    ],
)
def test_inputs_that_are_refused_before_anything_runs(tmp_path: Path, lines: list[str], said: str) -> None:
    done = batch(write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl")
    assert isinstance(done.exception, DapdError)
    assert said in str(done.exception)
    assert not parts_of(tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize("names", [("in.txt", "out.jsonl"), ("in.jsonl", "out.csv")])
def test_files_that_are_refused(tmp_path: Path, names: tuple[str, str]) -> None:
    write(tmp_path / "in.jsonl", MIXED)
    done = batch(tmp_path / names[0], tmp_path / names[1])
    assert isinstance(done.exception, DapdError)


@pytest.mark.parametrize("name", ["absent.jsonl", "absent.parquet"])
def test_a_file_that_is_not_there(tmp_path: Path, name: str) -> None:
    assert str(batch(tmp_path / name, tmp_path / "out.jsonl").exception).endswith(f"{name}: No such file or directory")


def test_a_date_that_python_does_not_know(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    far = pyarrow.table({"prompt": ["a"], "date": pyarrow.array([1 << 40], pyarrow.timestamp("s"))})
    parquet.write_table(far, tmp_path / "in.parquet")
    done = batch(tmp_path / "in.parquet", tmp_path / "out.jsonl")
    assert str(done.exception) == f"cannot read {tmp_path / 'in.parquet'}: date value out of range"


def test_neither_the_input_nor_a_file_of_others_is_written_over(tmp_path: Path) -> None:
    source = write_prompts(tmp_path / "in.jsonl", 2)
    before = source.read_bytes()
    (tmp_path / "soft.jsonl").symlink_to(source)
    (tmp_path / "hard.jsonl").hardlink_to(source)
    (tmp_path / "below").mkdir()
    for name in ("in.jsonl", "below/../in.jsonl", "soft.jsonl", "hard.jsonl"):
        done = batch(source, tmp_path / name)
        assert isinstance(done.exception, DapdError), name
        assert "it is the input itself; choose another name" in str(done.exception)
    foreign = write(tmp_path / "notes.jsonl", ["mine"])
    done = batch(source, foreign)
    assert isinstance(done.exception, DapdError)
    assert "move it or choose another name" in str(done.exception)
    assert (source.read_bytes(), foreign.read_bytes()) == (before, b"mine\n")
    assert not list(tmp_path.glob("*.parts"))
    (tmp_path / "out.jsonl").touch()
    for start in ("into an empty file", "once more"):
        assert batch(source, tmp_path / "out.jsonl").exit_code == 0, start


def test_packages_that_are_missing_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_prompts(tmp_path / "in.jsonl", 2)
    monkeypatch.setitem(sys.modules, "ray", None)
    for more in (["--ray"], ["--address", "auto"]):
        done = batch(source, tmp_path / "out.jsonl", *more)
        assert str(done.exception) == "work on a Ray cluster needs the package 'ray': pip install 'dapd[ray]'"
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    done = batch(source, tmp_path / "out.parquet")
    assert "pip install 'dapd[parquet]'" in str(done.exception)
    assert batch(source, tmp_path / "out.jsonl").exit_code == 0, "without them everything else works"


def test_another_start_goes_on_and_another_set_up_is_refused(tmp_path: Path) -> None:
    source, output = write_prompts(tmp_path / "in.jsonl", 4), tmp_path / "out.jsonl"
    assert batch(source, output).exit_code == 0
    kept = parts_of(output) / "results.jsonl"
    before, written = kept.read_bytes(), output.read_bytes()
    for more, said in [
        (["-s", "fast-dllm"], "strategy.name: 'Dapd' there, 'Threshold' here"),
        (["-m", "random:tiny-dream"], "model: 'random:tiny-llada' there"),
        (["-n", "4"], "max_new_tokens: 8 there, 4 here"),
        (["--set", "temperature=0.5"], "loop.sampling.temperature: 0.0 there, 0.5 here"),
    ]:
        done = batch(source, output, *more)
        assert said in str(done.exception), more
        assert "choose another output" in str(done.exception)
    assert kept.read_bytes() == before
    output.unlink()
    write_prompts(source, 6)
    assert batch(source, output, "--batch", "2").exit_code == 0
    assert kept.read_bytes().startswith(before), "what was done is not done again"
    assert kept.read_bytes().count(b"\n") == 6
    assert output.read_bytes().startswith(written)
    write(source, source.read_text().replace("question 1", "question one").splitlines())
    assert "was made for another text" in str(batch(source, output).exception)


def test_one_job_at_a_time(tmp_path: Path) -> None:
    source, output = write_prompts(tmp_path / "in.jsonl", 1), tmp_path / "out.jsonl"
    parts_of(output).mkdir()
    with alone_in(parts_of(output)):
        assert "another process is at work" in str(batch(source, output).exception)


def test_what_fails_in_a_job_is_not_laid_to_its_lock(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="the device is broken"), alone_in(tmp_path):
        raise RuntimeError("the device is broken")


def test_a_file_system_without_links_and_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as those of memory sticks, cloud drives and some clusters."""
    fcntl = pytest.importorskip("fcntl")
    asked = []

    def refused(number: int) -> Callable[..., None]:
        def call(*_: object) -> None:
            asked.append(number)
            raise OSError(number, os.strerror(number))

        return call

    monkeypatch.setattr(os, "link", refused(errno.EPERM))
    monkeypatch.setattr(fcntl, "flock", refused(errno.ENOSYS))
    source, output = write_prompts(tmp_path / "in.jsonl", 2), tmp_path / "out.jsonl"
    for _ in range(2):
        assert batch(source, output).exit_code == 0
    assert len(results(output)) == 2
    assert {errno.EPERM, errno.ENOSYS} == set(asked)
    done = batch(source, output, "-n", "4")
    assert "max_new_tokens: 8 there, 4 here" in str(done.exception)
    assert not list(tmp_path.rglob("*.draft"))
