"""All commands in one place."""

from __future__ import annotations

import typer

from dapd.cli import compare, generate, info, lab, mrf

app = typer.Typer(
    help="Dependency-aware parallel decoding for masked diffusion language models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("generate")(generate.generate)
app.command("compare")(compare.compare)
app.command("models")(info.models)
app.command("strategies")(info.strategies)
app.command("doctor")(info.doctor)
app.add_typer(lab.app, name="lab")
app.add_typer(mrf.app, name="mrf")
