"""Figures: every kind in every format, the numbers behind them, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
import torch

import dapd
from dapd.cli import main
from dapd.errors import DapdError
from dapd.evaluation.summary import Row
from dapd.plots import decoding, edges, figure
from dapd.plots.axes import Mark, draw_marks, log_axis, percent_limits
from dapd.plots.figure import Layout
from dapd.plots.palette import COLOURS, colour, family, labels, style
from dapd.plots.states import placed, states
from dapd.plots.tradeoff import tradeoff
from dapd.settings import describe
from dapd.strategies import PRESETS
from dapd.trace import Record, Trace, write_traces

pytest.importorskip("matplotlib")

STARTS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.fixture(scope="session")
def lm():
    return dapd.load("random:tiny-llada", device="cpu")


@pytest.fixture(scope="session")
def folder(tmp_path_factory, lm):
    """Traces, a comparison's summary and a toy report's results."""
    at = tmp_path_factory.mktemp("plots")
    for name in ("dapd-staged", "fast-dllm"):
        done = lm.generate_batch(["one", "another"], strategy=name, max_new_tokens=24)
        write_traces(at / f"{name}.jsonl", [completion.trace for completion in done])
    write_traces(at / "one.jsonl", [done[0].trace])
    rows = [
        vars(Row("shuffle", f, f"{f} {k}", 10, 50.0 + k, 40.0, 60.0, 10.0 * k, 2.0, 0.1))
        for f in ("dapd-direct", "fast-dllm")
        for k in (1, 2)
    ]
    (at / "summary.json").write_text(json.dumps({"rows": rows}))
    cuts = [{"tau": tau, "edges_found": 0.9, "false_edges": 0.2} for tau in (0.1, 0.5)]
    steps = [{"auc": {"mean": 0.9, "over_paths": 0.02}}] * 7
    found = {"scores": {"cuts": {"last 2": cuts}}, "evaluation": {"selections": {"last 2": {"steps": steps}}}}
    (at / "toy.json").write_text(json.dumps(found))
    return at


def command(*args: object) -> tuple[int, str, str]:
    """Exit code, output and errors of the program."""
    out, errors = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(errors):
        patch.setattr(sys, "argv", ["dapd", *map(str, args)])
        with pytest.raises(SystemExit) as end:
            main()
    return int(end.value.code or 0), out.getvalue(), errors.getvalue()


INPUTS = {
    "trajectory": ["dapd-staged.jsonl", "fast-dllm.jsonl"],
    "heatmap": ["dapd-staged.jsonl", "fast-dllm.jsonl"],
    "segments": ["dapd-staged.jsonl", "fast-dllm.jsonl"],
    "states": ["one.jsonl"],
    "tradeoff": ["summary.json"],
    "toy": ["toy.json"],
}


@pytest.mark.parametrize("suffix", [".svg", ".png", ".pdf"])
@pytest.mark.parametrize("kind", INPUTS)
def test_every_kind_is_drawn(folder, tmp_path, kind, suffix):
    out = tmp_path / f"figure{suffix}"
    code, said, errors = command("plot", kind, *(folder / name for name in INPUTS[kind]), "-o", out)
    assert (code, errors) == (0, "")
    assert str(out) in said
    assert out.read_bytes().startswith(STARTS[suffix])


def test_edges_come_from_a_model(tmp_path):
    out = tmp_path / "edges.svg"
    code, _, errors = command(
        "plot",
        "edges",
        "-m",
        "random:tiny-llada",
        "--prompt",
        "hello",
        "-n",
        12,
        "--tau",
        0.01,
        "--tau",
        0.1,
        "-o",
        out,
    )
    assert (code, errors) == (0, "")
    assert "below" in out.read_text()


@pytest.mark.parametrize("kind", INPUTS)
def test_size_title_and_labels(folder, tmp_path, kind):
    """The words in the file, and its size in points, of which an inch has 72."""
    ours = {"tradeoff": "score", "toy": "decoding step", "states": "decided at"}.get(kind, "progress")
    out = tmp_path / "figure.svg"
    wanted = ("--size", "5x6.5", "--title", "A $ heading", "--label", f"{ours}=other $ words")
    code, _, errors = command("plot", kind, *(folder / name for name in INPUTS[kind]), "-o", out, *wanted)
    assert (code, errors) == (0, "")
    drawn = out.read_text()
    assert 'width="360pt" height="468pt"' in drawn
    assert "A $ heading" in drawn
    assert "other $ words" in drawn
    assert f">{ours}" not in drawn


def test_labels_are_put_in_place_of_whole_words_at_once(tmp_path):
    out = tmp_path / "a.svg"
    renamed = Layout(labels={"fast-dllm": "dapd-direct", "dapd-direct": "fast-dllm", "score": "accuracy"})
    tradeoff([*rows("fast-dllm"), *rows("dapd-direct"), *rows("dapd-direct-2")], out, layout=renamed)
    said = re.findall(r">([a-z][^<]*)</text>", out.read_text())
    assert said[-3:] == ["dapd-direct", "fast-dllm", "dapd-direct-2"]
    assert "accuracy (%)" in said


def test_a_row_of_each_file(folder, tmp_path):
    out = tmp_path / "states.svg"
    files = [folder / "dapd-staged.jsonl", folder / "fast-dllm.jsonl"]
    for more, texts in (((), 4), (("--row", 2), 2)):
        assert command("plot", "states", *files, "-o", out, *more)[0] == 0
        assert len(set(re.findall(r">(.*), pass \d+ of", out.read_text()))) == texts


def inside(figure, artist) -> bool:
    """Whether an artist lies in the figure with at least a point of room on every side."""
    box, whole = artist.get_window_extent(), figure.bbox
    return box.x0 > 1 and box.y0 > 1 and box.x1 < whole.x1 - 1 and box.y1 < whole.y1 - 1


def test_legends_are_whole_and_cover_no_panel(tmp_path, monkeypatch):
    """With many and long names, in a narrow figure, too: fewer columns are taken until the legend fits."""
    drawn = []
    monkeypatch.setattr(figure, "save", lambda made, path: drawn.append(made))
    long = [row for name in ("a-decoder-with-a-long-name", "fast-dllm", "b" * 40, "klass", "d") for row in rows(name)]
    tradeoff(long, tmp_path / "a.png", layout=Layout(size=(4, 5)))
    decoding.segments([trace([[2], [0, 3]], name) for name in ("A" * 30, "B" * 30, "C")], tmp_path / "b.png")
    for made in drawn:
        made.draw_without_rendering()
        [legend] = made.legends
        assert inside(made, legend)
        assert not any(legend.get_window_extent().overlaps(axis.get_tightbbox()) for axis in made.axes)


def test_axes_end_where_the_quantity_does():
    assert percent_limits([100.0]) == (90, 100)
    assert percent_limits([0.0, 1.0]) == (0, 10)
    assert percent_limits([0.0, 100.0]) == (0, 100)
    low, high = percent_limits([40.0, 60.0])
    assert 35 < low < 40
    assert 60 < high < 65


@pytest.mark.parametrize(("low", "high"), [(2.9, 3.4), (1, 1), (3, 30), (1, 256), (1e-6, 1), (41, 44)])
def test_every_tick_of_a_logarithmic_axis_has_its_number(low, high):
    from matplotlib.figure import Figure

    made = Figure()
    axis = made.subplots()
    log_axis(axis, low, high)
    made.draw_without_rendering()
    left, right = axis.get_xlim()
    assert left < low <= high < right
    ticks = zip(axis.get_xticklabels(), axis.get_xticks(), strict=True)
    shown = [tick.get_text() for tick, at in ticks if left <= at <= right]
    assert 3 <= len(shown) <= 8
    assert all(shown)
    assert len(set(shown)) == len(shown)
    assert len(axis.get_xticks(minor=True)) == 0


def test_decoders_at_one_place_are_all_seen():
    """One is filled, the others are rings of growing size around it; one at another place is as large as the first."""
    from matplotlib.figure import Figure

    axis = Figure().subplots()
    draw_marks(
        axis, [Mark(x, 0.5, style(name), name) for x, name in ((0.5, "klass"), (0.5, "dawn"), (0.5, "EB"), (0, "x"))]
    )
    marks = [one for one in axis.collections if len(one.get_offsets())]
    sizes = [one.get_sizes()[0] for one in marks]
    assert [len(one.get_facecolors()) for one in marks] == [1, 0, 0, 1]
    assert sizes[0] == sizes[3] < sizes[2]
    assert len({one.get_sizes()[0] for one in marks}) == 3
    assert axis.get_legend_handles_labels()[1] == ["klass", "dawn", "EB", "x"]


def test_the_heat_map_is_the_typical_trajectory(tmp_path, monkeypatch):
    """Decided in pass 1, 1 and 3 of 4: half of the samples have it from the start."""
    seen = []
    monkeypatch.setattr(decoding, "_picture", lambda axis, born, *rest: seen.append(born) or axis.imshow([[0]]))
    samples = [trace([[0], [1], [2], [3]]), trace([[0], [1], [2], [3]]), trace([[3], [2], [0], [1]])]
    decoding.heatmap(samples, tmp_path / "a.png")
    assert seen[0].tolist() == [0, 0.25, 0.5, 0.75]


@pytest.mark.parametrize("until", [0.5, 1.0])
def test_a_part_of_a_trajectory_ends_where_it_was_asked_to(until):
    """Half of three passes ended at two thirds, beside colours that end at a half."""
    from matplotlib.figure import Figure

    axis = Figure().subplots()
    decoding.trajectory([trace([[0], [1], [2]])], until=until, axes=[axis])
    assert axis.get_ylim() == (100 * until, 0)
    assert axis.images[0].norm.vmax == 100 * until
    assert len(axis.images[0].get_array()) == {0.5: 2, 1.0: 3}[until]


def test_the_same_input_gives_the_same_bytes(folder, tmp_path):
    files = [tmp_path / "a.svg", tmp_path / "b.svg"]
    for out in files:
        command("plot", "segments", folder / "fast-dllm.jsonl", "-o", out)
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("heatmop", "{f}/fast-dllm.jsonl"), "did you mean 'heatmap'?"),
        (("heatmap", "{f}/fast-dllm.jsonl", "-o", "figure.gif"), ".png, .svg or .pdf"),
        (("heatmap", "{f}/fast-dllm.jsonl", "-o", "."), "error: .: figures are written as"),
        (("heatmap",), "at least one trace file"),
        (("heatmap", "{f}/none.jsonl"), "cannot read a trace"),
        (("heatmap", "{f}/summary.json"), "not a dapd trace"),
        (("heatmap", "{f}/fast-dllm.jsonl", "--until", "1.5"), "--until is 1.5"),
        (("states", *["{f}/fast-dllm.jsonl"] * 3), "6 texts cannot be read in one figure"),
        (("states", "{f}/fast-dllm.jsonl", "--row", "3"), "holds 2 traces; there is no row 3"),
        (("toy", "--row", "1"), "toy is not drawn from traces"),
        (("segments", "{f}/one.jsonl", "--size", "big"), "as in 7x4"),
        (("segments", "{f}/one.jsonl", "--size", "7x-1"), "must be above 0"),
        (("segments", "{f}/one.jsonl", "--label", "klass"), "not of the form field=value"),
        (("segments", "{f}/one.jsonl", "--label", "klass=KLASS"), "no 'klass' to be renamed; it shows"),
        (("tradeoff",), "dapd compare"),
        (("tradeoff", "{f}/toy.json"), "not a summary of `dapd compare`"),
        (("tradeoff", "{f}/none.json"), "cannot read results"),
        (("toy", "{f}/summary.json"), "not the results of a toy report"),
        (("toy", "{f}/none.json"), "cannot read the toy's results"),
        (("toy", "{f}"), "neither a toy report"),
        (("edges",), "there is no prompt"),
        (("edges", "{f}/fast-dllm.jsonl"), "drawn from a model"),
        (("edges", "--prompt", "x", "--tau", "3"), "between 0 and 1"),
    ],
)
def test_mistakes_are_named(folder, tmp_path, monkeypatch, args, said):
    monkeypatch.chdir(tmp_path)
    code, _, errors = command("plot", *(str(arg).format(f=folder) for arg in args))
    assert code == 2
    assert said in errors
    assert errors.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_view_command(folder, tmp_path):
    out = tmp_path / "page.html"
    code, said, _ = command("view", folder / "dapd-staged.jsonl", folder / "fast-dllm.jsonl", "-o", out, "--title", "T")
    assert code == 0
    assert "4 decodings, of 2 different prompts" in said
    assert "<title>T</title>" in out.read_text(encoding="utf-8")
    for args, wrong in (
        ((folder / "summary.json", "-o", out), "not a dapd trace"),
        ((folder / "fast-dllm.jsonl", "-o", tmp_path / "page.pdf"), "written as .html"),
        ((folder / "fast-dllm.jsonl", "-o", "."), "error: .: the page is written as .html"),
        ((folder / "fast-dllm.jsonl", "--row", 7, "-o", out), "there is no row 7"),
    ):
        code, _, errors = command("view", *args)
        assert code == 2
        assert wrong in errors


def trace(steps: list[list[int]], name: str = "Threshold", n: int = 4, **fields: object) -> Trace:
    made = Trace([9] * n, list(range(n)), 9, 8, about={"strategy": {"name": name, **fields}})
    for number, positions in enumerate(steps, 1):
        made.steps.append(Record(number, positions, [1] * len(positions), [1.0] * len(positions), 0, 1, 0.0))
    return made


def test_births_and_progress():
    one = trace([[2], [0, 3]])
    born = decoding.births(one)
    assert born.tolist() == [0.5, torch.inf, 0, 0.5]
    grid = decoding.unmasked(born, torch.tensor([0.0, 0.49, 0.5, 0.99]))
    assert grid.isnan().tolist() == [[True, True, False, True]] * 2 + [[False, True, False, False]] * 2
    assert grid[3].nan_to_num(9).tolist() == [0.5, 9, 0, 0.5]


def test_states_are_laid_out_on_lines():
    one = trace([[0, 1], [2, 3]])
    one.steps[0] = dataclasses.replace(one.steps[0], texts=["ab", ".\n"])
    one.steps[1] = dataclasses.replace(one.steps[1], texts=["x" * 103, " y"])
    at = [(token.text, token.line, token.column) for token in placed(one)]
    assert at == [("ab", 0, 0), (".", 0, 2), ("x" * 103, 1, 0), (" y", 2, 0)]


@pytest.mark.parametrize(("passes", "panels"), [(1, [1]), (3, [1, 2, 3]), (8, [2, 4, 6, 8])])
def test_states_show_no_pass_twice(tmp_path, passes, panels):
    states([trace([[step] for step in range(passes)], n=passes)], tmp_path / "a.svg")
    assert re.findall(r"pass (\d+) of", (tmp_path / "a.svg").read_text()) == [str(one) for one in panels]


@pytest.mark.parametrize("dpi", [100, 200, 300])
def test_texts_of_states_stay_in_their_boxes(dpi):
    """In a picture of pixels the width of a letter is rounded, which adds up over a long token."""
    from matplotlib.figure import Figure

    one = trace([[0, 1, 2, 3]])
    one.steps[0] = dataclasses.replace(one.steps[0], texts=["<|eot_id|>" * 2] * 4)
    figure = Figure(figsize=(7.0, 3.0), dpi=dpi, layout="constrained")
    axes = figure.subplots(4, 1)
    states([one], axes=axes)
    figure.draw_without_rendering()
    token = axes[0].texts[0].get_window_extent()
    box = axes[0].patches[0].get_window_extent()
    assert 0.9 * box.width < token.width <= box.width + 2


def test_samples_of_different_length_are_not_averaged(tmp_path):
    with pytest.raises(DapdError, match="of 4 and 5 new tokens"):
        decoding.heatmap([trace([[0]]), trace([[0]], n=5)], tmp_path / "a.png")


def test_empty_traces_are_refused(tmp_path):
    for draw in (decoding.trajectory, decoding.heatmap, decoding.segments):
        with pytest.raises(DapdError, match="trace 1 is empty"):
            draw([trace([])], tmp_path / "a.png")
    with pytest.raises(DapdError, match="at most 12"):
        decoding.trajectory([trace([[0]])] * 13, tmp_path / "a.png")


def test_scores_are_drawn_with_their_intervals():
    from matplotlib.figure import Figure

    axis = Figure().subplots()
    tradeoff([Row("t", "fast-dllm", "a", 10, 100.0, 72.0, 100.0, 5.0, 2.0, 0.1)], axes=[axis])
    [bars] = [one for one in axis.collections if type(one).__name__ == "LineCollection"]
    [segment] = bars.get_segments()
    assert segment.tolist() == [[5.0, 72.0], [5.0, 100.0]]


def rows(family: str = "fast-dllm") -> list[Row]:
    return [Row("shuffle", family, f"{family} {k}", 10, 50.0 + k, 40.0, 60.0, 10.0 * k, 2.0, 0.1) for k in (1, 2)]


DRAWN = {
    "trajectory": (1, lambda **to: decoding.trajectory([trace([[2], [0, 3]])], **to)),
    "heatmap": (1, lambda **to: decoding.heatmap([trace([[2], [0, 3]])], **to)),
    "segments": (2, lambda **to: decoding.segments([trace([[2], [0, 3]])], **to)),
    "states": (4, lambda **to: states([trace([[2], [0, 3]])], **to)),
    "tradeoff": (1, lambda **to: tradeoff(rows(), **to)),
    "edges": (1, lambda **to: edges.edges(edges.Scores(torch.ones(3, edges.BINS), {0.01: 5}), **to)),
}


@pytest.mark.parametrize("kind", DRAWN)
def test_the_callers_matplotlib_is_left_as_it_is(kind, tmp_path):
    """Settings, backend and open figures are the process's, not ours."""
    import matplotlib
    import matplotlib.pyplot as plt

    backend = matplotlib.get_backend()
    try:
        plt.switch_backend("svg")
        with matplotlib.rc_context({"font.size": 17.0, "axes.grid": True, "lines.linewidth": 9.0}):
            own, axis = plt.subplots()
            before = dict(matplotlib.rcParams)
            DRAWN[kind][1](path=tmp_path / "a.png")
            assert dict(matplotlib.rcParams) == before
            assert matplotlib.get_backend() == "svg"
            assert plt.get_fignums() == [own.number]
            assert plt.gca() is axis
    finally:
        plt.close("all")
        plt.switch_backend(backend)
    assert (tmp_path / "a.png").read_bytes().startswith(STARTS[".png"])


@pytest.mark.parametrize("kind", DRAWN)
def test_figures_are_drawn_on_the_callers_axes(kind, tmp_path):
    from matplotlib.figure import Figure

    panels, draw = DRAWN[kind]
    figure = Figure()
    axes = figure.subplots(1, panels, squeeze=False)[0]
    draw(axes=axes)
    assert all(axis.has_data() or axis.patches for axis in axes)
    figure.savefig(tmp_path / "mine.png")
    with pytest.raises(DapdError, match=f"{panels} panels are to be drawn, but {panels + 1} axes"):
        draw(axes=[*axes, axes[0]])
    with pytest.raises(DapdError, match="one of path and axes"):
        draw(axes=axes, path=tmp_path / "x.png")
    with pytest.raises(DapdError, match="set them on your own axes"):
        draw(axes=axes, layout=Layout(title="T"))
    with pytest.raises(DapdError, match="one of path and axes"):
        draw()


@pytest.mark.parametrize("name", [r"$\frac{$", "$", "a$b$c", r"\$x$", "%d{}\n\t", "日本 🙂", "caf\udce9"])
def test_any_name_of_a_strategy_can_be_drawn(name, tmp_path):
    odd = [trace([[2], [0, 3]], name), trace([[2], [0, 3]], name, width=3)]
    for number, draw in enumerate((decoding.trajectory, decoding.heatmap, decoding.segments)):
        draw(odd, tmp_path / f"{number}.svg")
    states(odd[:1], tmp_path / "states.svg")
    tradeoff(rows(name), tmp_path / "tradeoff.svg")
    if name == r"$\frac{$":
        assert r"$\frac{$" in (tmp_path / "tradeoff.svg").read_text()


def test_a_figure_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    for path, said in ((tmp_path / "no" / "a.png", "No such file"), (tmp_path / "file" / "a.png", "Not a directory")):
        with pytest.raises(DapdError, match=said):
            tradeoff(rows(), path)


@pytest.mark.parametrize("name", PRESETS)
def test_every_decoder_has_its_own_colour(name):
    said = json.loads(json.dumps(describe(PRESETS[name])))
    assert family(Trace([9], [0], 9, 8, about={"strategy": said})) == name
    assert len({colour(other) for other in COLOURS}) == len(COLOURS)
    assert style(name)["color"] == colour(name)


def test_families_and_labels():
    staged = describe(PRESETS["dapd-staged"])
    changed = [Trace([9], [0], 9, 8, about={"strategy": {**staged, "tau_min": tau}}) for tau in (0.01, 0.05)]
    assert [family(t) for t in changed] == ["dapd-staged"] * 2
    assert labels(changed) == ["dapd-staged tau_min=0.01", "dapd-staged tau_min=0.05"]
    assert labels([changed[0]] * 2) == ["dapd-staged (1)", "dapd-staged (2)"]
    blocks = [Trace([9], [0], 9, 8, about={"strategy": staged, "options": {"block_length": n}}) for n in (32, None)]
    assert labels(blocks) == ["dapd-staged block_length=32", "dapd-staged"]
    groups = decoding.by_decoder([changed[0], changed[1], changed[0]])
    assert {name: len(group) for name, group in groups.items()} == dict(zip(labels(changed), (2, 1), strict=True))
    solid, dashed = decoding.looks(list(groups.values()))
    assert solid["color"] == dashed["color"] == COLOURS["dapd-staged"]
    assert solid["linestyle"] != dashed["linestyle"]
    assert family(Trace([9], [0], 9, 8)) == "unknown decoder"
    assert family(trace([[0]], "LeftToRight", width=2)) == "LeftToRight"
    mine = ["LeftToRight", "MyDecoder", "Greedy", "Mine"]
    assert not {colour(name) for name in mine} & set(COLOURS.values())
    assert len({tuple(style(name).values()) for name in mine}) == len(mine)
    assert colour("LeftToRight") == "#CC6677"


def test_edge_scores_are_counted_once_a_direction(lm, tmp_path):
    steps: list[dapd.Step] = []
    found = edges.collect(lm, ["hello"], n_new=6, taus=[0.5, 1.0], on_step=steps.append)
    assert len(steps) == 6
    assert found.n == sum(m * (m - 1) for m in range(2, 7))
    assert int(found.counts.sum()) == found.n
    # Every row of two masks or more has a largest score, which is 1.
    assert found.n - found.below[1.0] >= sum(range(2, 7))
    with pytest.raises(DapdError, match="no prompt"):
        edges.collect(lm, [], n_new=6, taus=[])


def test_a_toy_run_shows_its_scores(tmp_path: Path):
    from dapd.mrf.storage import SHIPPED
    from dapd.plots.toy import toy

    if not (SHIPPED / "recipe.json").is_file():
        pytest.skip("no toy model is shipped")
    toy(None, tmp_path / "toy.svg")
    assert "non-edges" in (tmp_path / "toy.svg").read_text()
