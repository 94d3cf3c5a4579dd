"""`dapd plot`: the paper's figures from traces, results and models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from dapd.cli.models import opened
from dapd.cli.progress import Working
from dapd.cli.view import picked
from dapd.errors import DapdError, unknown
from dapd.evaluation.compare import read_results
from dapd.evaluation.summary import Row, summarise
from dapd.generation import DEFAULT_MODEL
from dapd.io.fields import split_pair
from dapd.io.files import parse_json
from dapd.lab.tasks import get
from dapd.lab.tasks.rooms import room_for
from dapd.plots import decoding, edges, toy
from dapd.plots.figure import AS_IT_COMES, Layout, check_suffix
from dapd.plots.states import states
from dapd.plots.tradeoff import tradeoff
from dapd.trace import Trace


@dataclass(frozen=True)
class Asked:
    """The arguments of the command line."""

    inputs: list[Path]
    out: Path
    until: float
    model: str
    prompts: list[str]
    task: str | None
    n: int
    max_new_tokens: int | None
    tau: list[float]
    row: int | None = None
    layout: Layout = AS_IT_COMES

    def traces(self) -> list[Trace]:
        if not self.inputs:
            raise DapdError("give at least one trace file (`dapd generate --trace FILE`)")
        return picked(self.inputs, self.row)


def plot(
    kind: Annotated[str, typer.Argument(help="trajectory, heatmap, segments, states, tradeoff, edges or toy.")],
    inputs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Trace files; for tradeoff, a folder or summary.json of `dapd compare`; for toy, a results.json."
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The figure: .png, .svg or .pdf.")] = Path("figure.png"),
    until: Annotated[float, typer.Option(help="trajectory, heatmap: the share of the decoding to draw.")] = 1.0,
    row: Annotated[
        int | None, typer.Option(min=1, help="With traces: which one of each file, counted from 1; default: all.")
    ] = None,
    size: Annotated[str | None, typer.Option(help="Width and height in inches, '7x4'; default: by content.")] = None,
    title: Annotated[str | None, typer.Option(help="A heading over the figure.")] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(help="Rename a decoder, an axis or a panel: 'klass=KLASS'; may be repeated."),
    ] = None,
    model: Annotated[str, typer.Option("--model", "-m", help="edges: as in `dapd generate`.")] = DEFAULT_MODEL,
    prompt: Annotated[list[str] | None, typer.Option(help="edges: a prompt; may be repeated.")] = None,
    task: Annotated[str | None, typer.Option(help="edges: take test prompts of this lab task.")] = None,
    n: Annotated[int, typer.Option("-p", "--prompts", min=1, help="edges: how many test prompts of that task.")] = 4,
    max_new_tokens: Annotated[
        int | None,
        typer.Option("-n", "--max-new-tokens", min=2, help="edges: new tokens; default: as in `dapd generate`."),
    ] = None,
    tau: Annotated[
        list[float] | None, typer.Option(help="edges: a threshold to mark; may be repeated; default: 0.01.")
    ] = None,
) -> None:
    """Draw a figure of the paper: trajectory, heatmap, segments, states, tradeoff, edges, toy."""
    if kind not in KINDS:
        raise unknown("kind of plot", kind, KINDS)
    check_suffix(out)
    if row is not None and kind not in OF_TRACES:
        raise DapdError(f"--row picks a trace, and {kind} is not drawn from traces ({', '.join(OF_TRACES)} are)")
    layout = Layout(read_size(size), title, dict(split_pair(pair, "--label") for pair in label or []))
    taus = tau or [0.01]
    asked = Asked(inputs or [], out, until, model, prompt or [], task, n, max_new_tokens, taus, row, layout)
    KINDS[kind](asked)
    print(f"wrote {out}")


def read_size(text: str | None) -> tuple[float, float] | None:
    """Width and height in inches, from text such as '7x4'."""
    if text is None:
        return None
    across, _, down = text.partition("x")
    try:
        return float(across), float(down)
    except ValueError:
        raise DapdError(f"--size is {text!r}; give width and height in inches, as in 7x4") from None


def _tradeoff(asked: Asked) -> None:
    if not asked.inputs:
        raise DapdError("give a folder or a summary.json of `dapd compare`")
    tradeoff([row for path in asked.inputs for row in read_rows(path)], asked.out, layout=asked.layout)


def read_rows(path: Path) -> list[Row]:
    """The rows of a comparison, from its summary or from the results in its folder."""
    if path.is_dir():
        if (path / "summary.json").is_file():
            return read_rows(path / "summary.json")
        results = read_results(path)
        if not results:
            raise DapdError(f"{path} holds no results of `dapd compare`")
        return summarise(results)
    try:
        content: Any = parse_json(path.read_text(encoding="utf-8"))
        return [Row(**row) for row in content["rows"]]
    except OSError as error:
        raise DapdError(f"cannot read results from {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DapdError(f"{path} is not a summary of `dapd compare` ({error})") from None


def _edges(asked: Asked) -> None:
    if asked.inputs:
        raise DapdError("edges are drawn from a model: give --model and --prompt (or --task), and no files")
    wrong = [tau for tau in asked.tau if not 0 < tau < 1]
    if wrong:
        raise DapdError(f"--tau is {wrong[0]}; it must lie between 0 and 1")
    texts = asked.prompts + ([e.prompt for e in get(asked.task).examples(asked.n)] if asked.task else [])
    if not texts:
        raise DapdError("there is no prompt to decode; give --prompt or --task")
    lm = opened(asked.model)
    n_new = asked.max_new_tokens or max(room_for(lm, text) for text in texts)
    with Working(Console(stderr=True), "passes", n_new * len(texts)) as work:
        prompts = [lm.question(text) for text in texts]
        scores = edges.collect(lm, prompts, n_new=n_new, taus=asked.tau, on_step=lambda _: work.advance())
    edges.edges(scores, asked.out, Path(asked.model).name, layout=asked.layout)


def _toy(asked: Asked) -> None:
    if len(asked.inputs) > 1:
        raise DapdError("give one results.json or run folder of the toy, or none for the model that is shipped")
    toy.toy(asked.inputs[0] if asked.inputs else None, asked.out, asked.layout)


KINDS: dict[str, Callable[[Asked], None]] = {
    "trajectory": lambda asked: decoding.trajectory(asked.traces(), asked.out, asked.until, layout=asked.layout),
    "heatmap": lambda asked: decoding.heatmap(asked.traces(), asked.out, asked.until, layout=asked.layout),
    "segments": lambda asked: decoding.segments(asked.traces(), asked.out, layout=asked.layout),
    "states": lambda asked: states(asked.traces(), asked.out, layout=asked.layout),
    "tradeoff": _tradeoff,
    "edges": _edges,
    "toy": _toy,
}
OF_TRACES = ("trajectory", "heatmap", "segments", "states")
