"""The results of the lab's sweep: `python experiments/lab_tables.py out/tradeoff --out docs/lab/tradeoff`.

Reads the folders that experiments/lab_tradeoff.py wrote (one for each model, in it one for each task), prints the
tables as Markdown and writes tradeoff.md, summary.json and tradeoff.png. A setting counts once every model has decoded
every prompt with it; intervals are those of means under resampled models and prompts.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import typer

from dapd.cli import run
from dapd.errors import DapdError
from dapd.evaluation.compare import Result, read_results
from dapd.evaluation.edges import EdgeAuc, edge_auc
from dapd.evaluation.runs import RESULTS
from dapd.evaluation.seeds import Cell, cells, passes_ratio
from dapd.evaluation.summary import Row, pareto
from dapd.generation import DEFAULT_MODEL, DiffusionLM, load
from dapd.io.files import make_folder, write_text
from dapd.io.table import Table
from dapd.lab.evaluate import Way
from dapd.lab.tasks import TASKS, Task, get
from dapd.plots.tradeoff import tradeoff
from dapd.strategies import AttentionNeed

DAPD = ("dapd-staged", "dapd-direct")
BASELINES = ("original", "fast-dllm", "fast-dllm-factor", "eb-sampler", "klass", "local-leap", "dawn")
WITHIN = 1.0
"""Points of accuracy that count as equal."""
PAPER = {
    "KLASS": "klass confidence=0.9",
    "Fast-dLLM": "fast-dllm threshold=0.9",
    "EB-Sampler": "eb-sampler gamma=0.1",
    "DAPD-Staged": "dapd-staged tau_max=0.15",
    "DAPD-Direct": "dapd-direct tau_max=0.05",
}
"""The methods of the paper's tables, each with the knob of its preset."""
WAYS = {
    "1 block": Way(),
    "1 block, EOS banned": Way(eos="ban"),
    "1 block, EOS deferred": Way(eos="defer"),
    "blocks of 32": Way(32),
}
RATIO = "baseline passes / DAPD passes (95%)"
QUICKEST = "quickest baseline within a point of the best"
OPEN_ENDED = ("quiz-5", "story", "code", "record", "scene")
"""Tasks whose texts end anywhere on the canvas."""


@dataclass(frozen=True)
class Point:
    """A decoder on a task, with the name of its setting taken apart."""

    cell: Cell

    @cached_property
    def row(self) -> Row:
        return self.cell.row()

    @cached_property
    def knob(self) -> str:
        """The decoder's name and fields, without those for its blocks and EOS, which are its `way`."""
        return " ".join(word for word in self.cell.decoder.split() if not word.startswith(("block_length=", "eos=")))

    @cached_property
    def way(self) -> Way:
        fields = dict(word.split("=", 1) for word in self.cell.decoder.split()[1:])
        block = fields.get("block_length")
        return Way(int(block) if block else None, fields.get("eos", "none"))  # type: ignore[arg-type]

    @property
    def is_control(self) -> bool:
        """Whether the decoder is a control, which shows what the graph of the last layers is worth."""
        return self.cell.family.startswith("control-") or "layers" in self.knob

    @property
    def is_dapd_in_one_block(self) -> bool:
        return self.cell.family in DAPD and self.way == Way() and not self.is_control

    def __str__(self) -> str:
        return f"{self.row.score:.1f} in {self.row.nfe:.1f}"

    @property
    def full(self) -> str:
        return f"{self} ({self.knob}, {self.way.label})"


Points = Sequence[Point]


def main(
    folder: Annotated[Path, typer.Argument(help="Folder that lab_tradeoff.py wrote.")],
    out: Annotated[Path, typer.Option(help="Folder for the tables and the figure.")] = Path("tradeoff"),
    edges: Annotated[bool, typer.Option(help="Measure the edge AUC of every layer too.")] = False,
    model: Annotated[str, typer.Option("--model", "-m", help="The model whose layers are measured.")] = DEFAULT_MODEL,
) -> None:
    """Make tables and a figure of the decoded sweep."""
    results = read(folder)
    by_model = list(results.values())
    points = [Point(cell) for cell in cells(by_model)]
    if not points:
        raise DapdError(f"{folder} holds no setting that is complete on every model; run lab_tradeoff.py further")
    asked = of_the_sweep(points)
    sweep = [point for point in asked if not point.is_control]
    alone = {name: of_the_sweep(map(Point, cells([own]))) for name, own in results.items()}
    make_folder(out)
    aucs = [auc for task in TASKS.values() if edges and task.graph for auc in layer_aucs(load(model), task)]
    sections = [
        ("What is needed for the accuracy of the best baseline", verdicts(sweep)),
        ("The models one by one", one_by_one(alone)),
        ("One setting for all tasks, and the best for each", single_settings(sweep)),
        ("Chosen on one half of the prompts, scored on the other", halves(by_model)),
        ("The settings that are not beaten in the mean over the tasks, and the controls", mean_front(asked)),
        ("EOS overflow", eos_overflow(sweep)),
        ("Blocks", block_wise(sweep)),
        ("More questions", questions(points)),
        ("Tied answers by the strength of the tie", ladder(by_model)),
        ("Other graphs than that of the last layers, and another order", controls(asked)),
        ("The same in the mean over the tasks, for each model", controls_by_model(asked, alone)),
        ("Where attention shows the graph", edge_table(aucs)),
        ("Pareto fronts", fronts(sweep)),
    ]
    tables = [f"## {title}\n\n{table.to_markdown()}" for title, table in sections if table and table.rows]
    text = "\n".join([f"# The decoders on {len(by_model)} model(s) of the lab\n", *tables])
    write_text(out / "tradeoff.md", text)
    rows = ",\n".join(json.dumps(dataclasses.asdict(point.row)) for point in points)
    write_text(out / "summary.json", f'{{"models": {len(by_model)}, "rows": [\n{rows}\n]}}\n')
    tradeoff([row for task in tasks_of(sweep) for row in family_fronts(of(sweep, task))], out / "tradeoff.png")
    print(text)


def read(folder: Path) -> dict[str, list[Result]]:
    """The results of every model, by the name of its folder."""
    models = sorted({path.parents[1] for path in folder.glob(f"*/*/{RESULTS}")})
    if not models:
        raise DapdError(f"{folder} holds no results; experiments/lab_tradeoff.py makes them")
    return {
        model.name: [r for path in sorted(model.glob(f"*/{RESULTS}")) for r in read_results(path.parent)]
        for model in models
    }


def of_the_sweep(points: Iterable[Point]) -> list[Point]:
    """The points of tasks that were decoded under every setting: all but quizzes of another length than five."""
    return [point for point in points if point.cell.task == "quiz-5" or not point.cell.task.startswith("quiz-")]


def of(points: Points, task: str) -> list[Point]:
    return [point for point in points if point.cell.task == task]


def tasks_of(points: Points) -> list[str]:
    names = {point.cell.task for point in points}
    return sorted(names, key=lambda name: [*OPEN_ENDED, *TASKS, name].index(name))


def mean(points: Points, name: str) -> float:
    """The mean of one field, by its name, over the rows of the points."""
    return float(sum(getattr(point.row, name) for point in points) / len(points))


def fastest(settings: Sequence[Points], score: float) -> Points:
    """The setting with the fewest passes among those that reach a score, each given as its points on some tasks; empty
    where none does."""
    return min((s for s in settings if mean(s, "score") >= score), key=lambda s: mean(s, "nfe"), default=[])


def best(settings: Sequence[Points]) -> Points:
    """The setting with the fewest passes within a point of the highest score."""
    return fastest(settings, max((mean(setting, "score") for setting in settings), default=0.0) - WITHIN)


def verdicts(points: Points) -> Table:
    """The quickest baseline within a point of the best one's score, and DAPD in one block at that score."""
    head = ("task", "step by step", QUICKEST, "DAPD in one block, no EOS rule", RATIO)
    return Table(head, [line for task in tasks_of(points) for line in verdict(of(points, task))], words=4)


def verdict(points: Points) -> Iterator[Sequence[str]]:
    """The line of one task, where baselines were decoded."""
    base, ours = chosen(points)
    dapd = [[p] for p in points if p.is_dapd_in_one_block]
    if base is None or not dapd:
        return
    steps = best([[p] for p in points if p.knob == "original k=1"])
    said, ratio = f"none; at best {best(dapd)[0].full}", "-"
    if ours is not None:
        said, estimate = ours.full, passes_ratio(base.cell, ours.cell)
        ratio = f"{estimate.value:.2f} ({estimate.low:.2f}-{estimate.high:.2f})"
    yield base.cell.task, "".join(p.full for p in steps), base.full, said, ratio


def one_by_one(alone: Mapping[str, Points]) -> Table | None:
    """The verdict on every model by itself, where there are several: they differ more than prompts do."""
    head = ("task", "model", "step by step", QUICKEST, "DAPD in one block, no EOS rule", RATIO)
    lines = [
        (task, name, *rest)
        for task in tasks_of([point for points in alone.values() for point in points])
        for name, points in alone.items()
        for _, *rest in verdict([point for point in of(points, task) if not point.is_control])
    ]
    return Table(head, lines, words=5) if len(alone) > 1 else None


def halves(by_model: Sequence[Sequence[Result]]) -> Table:
    """A baseline and DAPD at its score, chosen on every second prompt and scored on the others, both ways.

    Of many settings that are tried on some prompts the best looks better than it is; here neither side gains by that.
    """
    parts = [[[r for r in results if r.example % 2 == half] for results in by_model] for half in (0, 1)]
    points = [[p for p in map(Point, cells(part)) if not p.is_control] for part in parts]
    lines = []
    for half, seen, unseen in (("even", points[0], points[1]), ("odd", points[1], points[0])):
        scored = {(p.cell.task, p.cell.decoder): p for p in unseen}
        for task in tasks_of([p for p in seen if p.cell.task in OPEN_ENDED]):
            # A run that was stopped may have finished a setting on one half alone.
            base, ours = chosen([p for p in of(seen, task) if (task, p.cell.decoder) in scored])
            shown = [scored[p.cell.task, p.cell.decoder].full if p else "none" for p in (base, ours)]
            lines.append((task, half, *shown))
    head = ("task", "chosen on prompts", QUICKEST, "DAPD in one block, no EOS rule")
    return Table(head, sorted(lines), words=4)


def chosen(points: Points) -> tuple[Point | None, Point | None]:
    """The quickest baseline within a point of the best one's score, and DAPD in one block likewise."""
    baselines = [[p] for p in points if p.cell.family in BASELINES]
    dapd = [[p] for p in points if p.is_dapd_in_one_block]
    ours = fastest(dapd, max((p.row.score for (p,) in baselines), default=0.0) - WITHIN)
    return next(iter(best(baselines)), None), next(iter(ours), None)


def single_settings(points: Points) -> Table:
    """For each family the one setting that is best over all tasks, beside the best setting of every task."""
    tasks = tasks_of(points)
    lines = []
    for family in (*DAPD, *BASELINES):
        mine = [p for p in points if p.cell.family == family]
        settings = settings_for_all(mine, tasks)
        if settings:
            common = best(list(settings.values()))
            name = next(name for name, own in settings.items() if own is common)
            each = [p for task in tasks for p in best([[p] for p in of(mine, task)])]
            lines.append((family, name, *(f"{mean(s, n):.1f}" for s in (common, each) for n in ("score", "nfe"))))
    return Table(("decoder", "one setting", "score %", "passes", "best per task: score %", "passes"), lines, words=2)


def mean_front(points: Points) -> Table:
    """The Pareto front of the mean score and the mean passes over all tasks, for settings that every task has.

    Controls are not part of the front, but are shown in brackets at their places: how good they are without the graph
    says what the graph is worth.
    """
    settings = settings_for_all(points, tasks_of(points))
    means = sorted((mean(own, "nfe"), mean(own, "score"), name, own[0].is_control) for name, own in settings.items())
    lines = []
    highest = -1.0
    for passes, score, name, control in means:
        if control or score > highest:
            lines.append((f"({name})" if control else name, f"{score:.1f}", f"{passes:.1f}"))
        highest = highest if control else max(highest, score)
    return Table(("decoder and setting", "score %", "passes"), lines)


def settings_for_all(points: Points, tasks: Sequence[str]) -> dict[str, Points]:
    """Every setting on every task; where blocks do not fit a canvas, it is decoded as one block."""
    places = {(p.knob, p.way, p.cell.task): p for p in points}
    settings: dict[str, Points] = {}
    for knob, way in dict.fromkeys((p.knob, p.way) for p in points):
        own = [places.get((knob, way, task)) or places.get((knob, Way(eos=way.eos), task)) for task in tasks]
        if all(own):
            settings[f"{knob}, {way.label}"] = [p for p in own if p is not None]
    return settings


def eos_overflow(points: Points) -> Table:
    """The paper's table: one block, one block with EOS held back, and blocks, for every method."""
    tasks = [task for task in OPEN_ENDED if of(points, task)]
    lines = []
    for method, knob in PAPER.items():
        for setting, way in WAYS.items():
            here = [find(points, task, knob, way) for task in tasks]
            if any(here):
                numbers = [cell for p in here for cell in _numbers(p, lambda p: p.row.nfe)]
                lines.append((method, setting, *numbers))
    head = [text for task in tasks for text in (f"{task}: score %", "passes")]
    return Table(("method", "setting", *head), lines, words=2)


def block_wise(points: Points) -> Table:
    """The paper's table of blocks, on five questions; speed is in tokens per pass, which no machine changes."""
    canvas = get("quiz-5").room
    lines = []
    for method, knob in PAPER.items():
        for block in (None, 96, 32, 16):
            point = find(points, "quiz-5", knob, Way(block))
            if point is not None:
                tokens = _numbers(point, lambda p: p.row.tokens_per_forward)
                lines.append((method, str(canvas // (block or canvas)), *tokens, f"{point.row.nfe:.1f}"))
    return Table(("method", "blocks", "score %", "tokens/pass", "passes"), lines)


def find(points: Points, task: str, knob: str, way: Way) -> Point | None:
    return next((p for p in points if (p.cell.task, p.knob, p.way) == (task, knob, way)), None)


def _numbers(point: Point | None, speed: Callable[[Point], float]) -> tuple[str, str]:
    return ("", "") if point is None else (f"{point.row.score:.1f}", f"{speed(point):.1f}")


def questions(points: Points) -> Table:
    """Score and passes for one to eight questions."""
    tasks = [f"quiz-{n}" for n in range(1, 9) if of(points, f"quiz-{n}")]
    asked = [p for p in points if p.cell.task in tasks]
    labels = dict.fromkeys(p.cell.decoder for p in asked if p.cell.task != "quiz-5")
    shown = {(p.cell.decoder, p.cell.task): str(p) for p in asked}
    lines = [(label, *(shown.get((label, task), "") for task in tasks)) for label in labels]
    return Table(("decoder", *(task.removeprefix("quiz-") for task in tasks)), lines)


def ladder(by_model: Sequence[Sequence[Result]]) -> Table | None:
    """Score and passes on tied answers by how strongly the prompt ties their styles, in one block."""
    ties = [[r for r in results if r.task == "tied" and "=" in r.decoder] for results in by_model]
    n = 1 + max((r.example for results in ties for r in results), default=-1)
    strengths = [f"{example.meta['rho']:g}" for example in get("tied").examples(n)]
    split = [[dataclasses.replace(r, task=strengths[r.example]) for r in results] for results in ties]
    points = [point for point in map(Point, cells(split)) if point.way == Way()]
    levels = sorted({p.cell.task for p in points}, key=float)
    shown = {(p.knob, p.cell.task): str(p) for p in points}
    knobs = sorted({p.knob for p in points if p.is_dapd_in_one_block or p.knob in PAPER.values()})
    lines = [(knob, *(shown.get((knob, level), "") for level in levels)) for knob in knobs]
    return Table(("decoder", *levels), lines) if lines else None


def controls(points: Points) -> Table:
    """DAPD-Direct in one block beside the same with the edges of all layers, with wrong edges and in another order."""
    tasks = [task for task in OPEN_ENDED if of(points, task)]
    shown = {(p.knob, p.cell.task): str(p) for p in points if p.way == Way()}
    knobs = [PAPER["DAPD-Direct"], *dict.fromkeys(p.knob for p in points if p.is_control)]
    lines = [(knob, *(shown.get((knob, task), "") for task in tasks)) for knob in knobs]
    return Table(("decoder", *tasks), lines if len(knobs) > 1 else [])


def controls_by_model(points: Points, alone: Mapping[str, Points]) -> Table | None:
    """Direct and the controls in the mean over all tasks: of all models together, and of each."""
    columns = [settings_for_all(own, tasks_of(own)) for own in (points, *alone.values())]
    names = [name for name, own in columns[0].items() if own[0].is_control]
    names = [f"{PAPER['DAPD-Direct']}, {Way().label}", *names]
    shown = [[_in_mean(column[name]) if name in column else "" for column in columns] for name in names]
    lines = [(name, *cells) for name, cells in zip(names, shown, strict=True) if any(cells)]
    return Table(("decoder", "all models", *alone), lines) if len(alone) > 1 and len(lines) > 1 else None


def _in_mean(points: Points) -> str:
    return f"{mean(points, 'score'):.1f} in {mean(points, 'nfe'):.1f}"


def layer_aucs(lm: DiffusionLM, task: Task) -> list[EdgeAuc]:
    """The edge AUC of every layer alone, the last 30%, the middle half and all layers, with all positions masked and
    with half of them."""
    n = lm.network.n_layers
    last = tuple(sorted(AttentionNeed(0.3).resolve(n)))
    sets = [*((i,) for i in range(n)), last, tuple(range(n // 4, 3 * n // 4)), tuple(range(n))]
    return [auc for share in (1.0, 0.5) for auc in edge_auc(lm, task, list(dict.fromkeys(sets)), masked=share)]


def edge_table(edges: Sequence[EdgeAuc]) -> Table:
    """How well attention ranks true edges above other pairs of masked positions, by layer."""
    sets = list(dict.fromkeys(auc.layers for auc in edges))
    names = [f"layer {s[0]}" if len(s) == 1 else f"layers {s[0]}-{s[-1]}" for s in sets]
    lines = []
    for task, share in dict.fromkeys((auc.task, auc.masked) for auc in edges):
        areas = {auc.layers: auc.auc for auc in edges if (auc.task, auc.masked) == (task, share)}
        lines.append((task, f"{share:.0%}", *(f"{areas[s]:.2f}" for s in sets)))
    return Table(("task", "masked", *names), lines, words=2)


def fronts(points: Points) -> Table:
    """The settings that no other setting of any decoder beats, task by task."""
    lines = [
        (task, row.decoder, f"{row.score:.1f}", f"{row.low:.1f}-{row.high:.1f}", f"{row.nfe:.1f}")
        for task in tasks_of(points)
        for row in pareto([p.row for p in of(points, task)])
    ]
    return Table(("task", "decoder", "score %", "95%", "passes"), lines, words=2)


def family_fronts(points: Points) -> list[Row]:
    """Each family's own front: hundreds of settings would hide one another."""
    families = dict.fromkeys(p.cell.family for p in points)
    return [row for family in families for row in pareto([p.row for p in points if p.cell.family == family])]


if __name__ == "__main__":
    run(main)
