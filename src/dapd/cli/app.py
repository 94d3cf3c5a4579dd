"""All commands in one place."""

from __future__ import annotations

from typing import Annotated

import typer

import dapd
from dapd.cli import batch, bench, bench_tasks, chat, compare, diff, generate, info, lab, mrf, paper, plot, serve, view
from dapd.cli import eval as eval_

app = typer.Typer(
    help="Dependency-aware parallel decoding for masked diffusion language models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def show_version(asked: bool) -> None:
    if asked:
        print(f"dapd {dapd.__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Dependency-aware parallel decoding for masked diffusion language models."""


app.command("generate")(generate.generate)
app.command("batch")(batch.batch)
app.command("compare")(compare.compare)
app.command("chat")(chat.chat)
app.command("serve")(serve.serve)
app.command("view")(view.view)
app.command("diff")(diff.diff)
app.command("plot")(plot.plot)
app.command("eval")(eval_.eval_)
app.command("paper")(paper.paper)
app.command("models")(info.models)
app.command("strategies")(info.strategies)
app.command("doctor")(info.doctor)
app.add_typer(lab.app, name="lab")
app.add_typer(mrf.app, name="mrf")
app.add_typer(bench.app, name="bench")
app.add_typer(bench_tasks.app, name="parallelbench")
