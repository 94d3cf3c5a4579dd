"""`dapd serve`: a model behind OpenAI's HTTP interface."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from dapd.cli.models import Device, Dtype, Fp8, Model, opened
from dapd.errors import DapdError
from dapd.generation import DEFAULT_MODEL
from dapd.models.devices import pick_dtype


def serve(
    model: Model = DEFAULT_MODEL,
    name: Annotated[
        str | None, typer.Option(help="The model's name for clients; default: its own, or the last part of a folder.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; any but loopback needs API keys.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0: any free one.", min=0, max=65535)] = 8000,
    keys: Annotated[Path | None, typer.Option(help="A file with API keys, one per line; or set DAPD_API_KEYS.")] = None,
    anonymous: Annotated[
        bool, typer.Option("--anonymous", help="Require no API key, even at an address that other machines reach.")
    ] = False,
    origin: Annotated[
        list[str] | None, typer.Option(help="An origin whose web pages may call, as https://HOST; may be repeated.")
    ] = None,
    places: Annotated[int, typer.Option(help="The most texts decoded at the same time.", min=1)] = 16,
    queue: Annotated[int, typer.Option(help="The most texts that may wait for a place.", min=0)] = 64,
    max_prompt: Annotated[int, typer.Option(help="Longest prompt, in tokens.", min=1)] = 16_384,
    max_new_tokens: Annotated[int, typer.Option(help="The most new tokens of a text.", min=1)] = 4_096,
    max_seconds: Annotated[float, typer.Option(help="Longest time of a request, in seconds.", min=1)] = 600.0,
    drain_seconds: Annotated[
        float, typer.Option(help="Seconds that running requests get after SIGTERM.", min=1)
    ] = 30.0,
    device: Device = None,
    dtype: Dtype = None,
    fp8: Fp8 = False,
    replicas: Annotated[
        int | None,
        typer.Option(min=1, help="Number of copies of the model behind one address, on Ray Serve; a GPU each."),
    ] = None,
    max_replicas: Annotated[
        int | None, typer.Option(min=1, help="With --replicas: the most there may be under load.")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="With --replicas: a running Ray cluster, HOST:PORT or auto; default: a new one.")
    ] = None,
    patience: Annotated[
        float, typer.Option(min=1, help="With --replicas: give up if not all are ready after so many seconds.")
    ] = 600.0,
) -> None:
    """Serve a model: /v1/chat/completions, /v1/completions, /v1/infill, and a page to watch it at /."""
    from dapd.server import Config, Keys, Limits
    from dapd.server import serve as serve_alone

    limits = Limits(
        places=places,
        queue=queue,
        prompt_tokens=max_prompt,
        new_tokens=max_new_tokens,
        seconds=max_seconds,
        drain_seconds=drain_seconds,
    )
    config = Config(host, port, Keys.find(keys), anonymous, tuple(origin or ()), limits, name)
    if address is None:  # the proxies of a running cluster have ports of their own
        config.check_free()
    if replicas is not None:
        if port == 0:
            raise DapdError("--port is 0; with --replicas, give the number of the port that they share")
        from dapd.scale.recipe import Recipe
        from dapd.scale.replicas import Fleet, serve_replicas

        recipe = Recipe(model, device, pick_dtype(dtype), fp8)
        serve_replicas(recipe, config, Fleet(replicas, max_replicas, address, patience), tell)
        return
    if max_replicas is not None or address is not None:
        raise DapdError(
            "--max-replicas and --address are for several replicas; say with how many to begin: --replicas 2"
        )
    lm = opened(model, device, dtype, fp8=fp8)
    serve_alone(lm, config, tell)


def tell(text: str) -> None:
    with suppress(OSError):  # such as a full disk, which is no reason to stop serving
        print(text, file=sys.stderr, flush=True)
