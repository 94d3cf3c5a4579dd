"""The page as a file: what it holds, how small it is, what is refused."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import re
from pathlib import Path

import pytest

from dapd.cli.view import picked
from dapd.errors import DapdError
from dapd.trace import Record, Trace, read_traces, write_traces
from dapd.viewer import render, write_page
from dapd.viewer.compact import compact
from dapd.viewer.page import MODULES, MOST, bundle, embedded, read
from dapd.viewer.report import write_report
from viewer.helpers_viewer import big, made


def bits(text: str) -> list[int]:
    return [byte >> i & 1 for byte in base64.b64decode(text) for i in range(8)]


def test_the_front_end_is_small_and_inlines():
    assert sum(len(read(name).encode()) for name in [*(f"{m}.js" for m in MODULES), "viewer.css"]) < 75_000
    code = bundle()
    assert not re.search(r"^(import|export) ", code, re.M)
    assert "://" not in code.replace("http://www.w3.org", "")
    names = re.findall(r"^(?:class|function|const|let) (\w+)", code, re.M)
    assert len(names) == len(set(names)), "one scope holds all modules"


def test_text_cannot_leave_its_element():
    nasty = made([["</script>", "<!--", "<script>x</script>"]], prompt="</script><img src=x onerror=x>")
    page = render([nasty], title="</title><script>x</script>")
    assert page.count("<script") == page.count("</script>") == 2
    assert "<img" not in page
    assert "<!--" not in page
    assert json.loads(embedded({"a": "</script>"})) == {"a": "</script>"}


def test_edges_and_what_was_held_back_survive_packing(decoded):
    trace = decoded[0]
    left = list(trace.slots)
    for record, packed in zip(trace.steps, compact(trace)["records"], strict=True):
        n, place = len(left), {p: i for i, p in enumerate(left)}
        found = {(i // n, i % n) for i, bit in enumerate(bits(packed["edges"]["all"])) if bit}
        assert found == {(place[i], place[j]) for i, j in record.edges}
        left = [p for p in left if p not in record.positions]
        values = base64.b64decode(packed["held"])
        told = dict(map(tuple, record.held))
        assert [round(v / 254, 2) for v in values] == pytest.approx([told[p] for p in left], abs=0.01)


def test_what_was_held_back_is_recorded_on_demand(decoded):
    import dapd

    trace = decoded[0]
    left = set(trace.slots)
    for record in trace.steps:
        left -= set(record.positions)
        assert [p for p, _ in record.held] == sorted(left)
        assert all(0 <= c <= 1 for _, c in record.held)
    plain = dapd.load("random:tiny-llada", device="cpu").generate("Five questions", max_new_tokens=8).trace
    assert all(record.held is None and record.edges is None for record in plain.steps)
    assert "".join(plain.texts) == "Five questions"


def test_large_graphs_keep_the_edges_to_the_chosen(decoded):
    trace = decoded[0]
    nodes = list(trace.slots)
    record, packed = trace.steps[0], compact(trace, all_edges=0)["records"][0]
    found = bits(packed["edges"]["chosen"])
    for c, j in enumerate(record.positions):
        for i, node in enumerate(nodes):
            assert found[c * len(nodes) + i] == ([node, j] in record.edges)


def test_a_large_trace_stays_small():
    assert len(render([big()]).encode()) < 3_000_000 / 2


def test_records_are_those_of_the_trace(decoded):
    packed = compact(decoded[1])
    assert [r["positions"] for r in packed["records"]] == [r.positions for r in decoded[1].steps]
    assert [r["texts"] for r in packed["records"]] == [r.texts for r in decoded[1].steps]
    assert all("edges" not in r for r in packed["records"])
    assert packed["head"]["slots"] == decoded[1].slots


def test_the_page_says_what_is_wrong(tmp_path, decoded):
    with pytest.raises(DapdError, match="no traces"):
        render([])
    with pytest.raises(DapdError, match=r"trace 2 is empty"):
        render([decoded[0], Trace([9], [0], 9, 8)])
    with pytest.raises(DapdError, match=f"at most {MOST}"):
        render([decoded[0]] * (MOST + 1))
    with pytest.raises(DapdError, match=r"written as \.html"):
        write_page(tmp_path / "page.txt", decoded)
    with pytest.raises(DapdError, match="cannot write"):
        write_page(tmp_path / "nowhere" / "page.html", decoded)


ODD = [
    None,
    True,
    -1,
    10**30,
    1.5,
    math.nan,
    math.inf,
    "x",
    [],
    [None],
    [[1]],
    [1, 1],
    {},
    {"a": 1},
    "x" * 300,
    [-1],
    [2.5],
]
HEAD = [field.name for field in dataclasses.fields(Trace)]
STEP = [field.name for field in dataclasses.fields(Record)]


def refuse(word: str) -> None:
    raise ValueError(f"no browser reads {word}")


@pytest.mark.parametrize("value", ODD, ids=lambda value: repr(value)[:20])
@pytest.mark.parametrize("name", [*HEAD, *(f"step.{name}" for name in STEP)])
def test_a_trace_of_another_form_is_shown_or_refused(decoded, name, value):
    """Whatever stands in a file: a page that a browser can read, or a line that says what is wrong."""
    if name.startswith("step."):
        records = list(decoded[0].steps)
        records[1] = dataclasses.replace(records[1], **{name.removeprefix("step."): value})
        trace = dataclasses.replace(decoded[0], steps=records)
    else:
        trace = dataclasses.replace(decoded[0], **{name: value})
    try:
        page = render([trace])
    except DapdError as error:
        page = f'id="traces">{json.dumps(str(error)[:200])}</script>' if str(error).startswith("trace 1") else ""
    content = re.search(r'id="traces">(.*?)</script>', page, re.S)
    assert content is not None
    json.loads(content[1], parse_constant=refuse)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, {"deep": [math.nan]}])
def test_settings_that_are_no_numbers_are_put_into_words(decoded, value):
    about = {**decoded[0].about, "temperature": value, "strategy": {"name": "Dapd", "tau_min": value}, "prompt": 5}
    page = render([dataclasses.replace(decoded[0], about=about)])
    [content] = re.findall(r'id="traces">(.*?)</script>', page, re.S)
    shown = json.loads(content, parse_constant=refuse)["traces"][0]["head"]["about"]
    assert "infinite" in str(shown["temperature"]) or "not a number" in str(shown["temperature"])
    assert shown["prompt"] == "5"


def test_rows_are_picked(tmp_path, decoded):
    write_traces(tmp_path / "two.jsonl", decoded)
    assert len(picked([tmp_path / "two.jsonl"], None)) == 2
    assert picked([tmp_path / "two.jsonl"], 2)[0].nfe == decoded[1].nfe
    with pytest.raises(DapdError, match="there is no row 3"):
        picked([tmp_path / "two.jsonl"], 3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: lines[:-1], "truncated"),
        (lambda lines: [lines[0], lines[1][:40]], "line 2: not a dapd trace"),
        (lambda lines: ["{}"], "line 1: not a dapd trace"),
        (lambda lines: ['{"a": [1, 2]}'], "line 1: not a dapd trace"),
        (lambda lines: [], "holds no trace"),
        (lambda lines: [lines[0], lines[1], lines[1], lines[-1]], "out of order"),
        (lambda lines: [lines[0], lines[1], lines[1].replace('"step": 1', '"step": 2'), lines[-1]], "twice"),
        (lambda lines: [lines[0].replace('"about": {', '"about": [], "x": {'), lines[-1]], "not a dapd trace"),
        (
            lambda lines: [lines[0], lines[1].replace('"confidences": [', '"confidences": ["1", '), lines[-1]],
            "not a dapd",
        ),
        (lambda lines: [lines[0].replace('"slots": [', '"slots": [99999, '), lines[-1]], "outside of the canvas"),
        (lambda lines: [lines[0], lines[1].replace('"tokens": [', '"tokens": [1, '), lines[-1]], "different numbers"),
    ],
)
def test_foreign_and_truncated_files(tmp_path, decoded, change, said):
    path = tmp_path / "t.jsonl"
    write_traces(path, decoded[1:])
    path.write_text("".join(line + "\n" for line in change(path.read_text().splitlines())))
    with pytest.raises(DapdError, match=said):
        read_traces(path)


def test_a_report_holds_the_page_and_the_figures(tmp_path: Path, decoded):
    pytest.importorskip("matplotlib")
    written = write_report(tmp_path / "out", decoded, "Beside each other")
    assert [path.name for path in written] == ["decoding.html", "trajectory.png", "heatmap.png", "segments.png"]
    assert all(path.stat().st_size > 1000 for path in written)


def test_a_template_shows_its_given_text():
    import dapd

    trace = dapd.load("random:tiny-llada", device="cpu").infill("The [MASK*3] of it").trace
    assert "".join(trace.texts) == "The  of it"
    assert compact(trace)["head"]["texts"] == trace.texts
