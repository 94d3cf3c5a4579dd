"""`dapd models`, `dapd strategies` and `dapd doctor`: what there is, what it means, what is missing."""

from __future__ import annotations

import importlib.util
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dapd.io.fields import explain
from dapd.io.wording import plural
from dapd.models import ARCHITECTURES, SHAPES, Transformer
from dapd.settings import PAPER, fields_of, named
from dapd.strategies import PRESETS, Selects

console = Console()

EXTRAS = {
    "hub": {"transformers": "tokenizers, chat templates", "huggingface_hub": "checkpoints by hub id"},
    "cli": {"typer": "this command line", "rich": "tables and the live view"},
    "plots": {"matplotlib": "figures"},
    "eval": {"lm_eval": "benchmarks", "rouge_score": "ROUGE-L", "sacrebleu": "BLEU", "pyyaml": "ParallelBench's files"},
    "forms": {"outlines_core": "texts that keep a regular expression or a JSON Schema"},
    "parquet": {"pyarrow": "Parquet in dapd batch"},
    "ray": {"ray": "several machines"},
    "serve": {"fastapi": "dapd serve", "uvicorn": "dapd serve", "prometheus_client": "its metrics"},
}
"""The packages that each extra installs, and what each is for."""


def models() -> None:
    """Checkpoints that can be loaded, and shapes that can be built with random weights."""
    table = Table(
        "architecture", "checkpoints", title="Checkpoints: dapd generate -m ID_OR_FOLDER", title_justify="left"
    )
    table.add_row("LLaDA in miniature, trained on small tasks", "lab (ships inside), lab:any-text")
    for name, architecture in ARCHITECTURES.items():
        table.add_row(f"{name} ({architecture.name})", "\n".join(architecture.hub_ids))
    table.add_row("any ...ForMaskedLM of transformers", "BERT, RoBERTa, ModernBERT, ESM-2, ...")
    console.print(table)
    columns = ("shape", "parameters", "layers", "width", "heads", "vocabulary", "mask / eos / end of turn")
    table = Table(*columns, title="Random weights: dapd generate -m random:SHAPE", title_justify="left")
    for name, config in SHAPES.items():
        with torch.device("meta"):
            size = sum(p.numel() for p in Transformer(config).parameters())
        ids = f"{config.profile.mask_id} / {config.profile.eos_id} / {config.profile.eot_id}"
        heads = f"{config.n_heads}/{config.n_kv_heads}"
        shown = f"{size / 1e9:.2f} B" if size > 1e8 else f"{size / 1e6:.2f} M"
        table.add_row(name, shown, str(config.n_layers), str(config.d_model), heads, str(config.vocab_size), ids)
    console.print(table)


def strategies(
    name: Annotated[str | None, typer.Argument(help="Show one strategy's fields with their meaning.")] = None,
    paper: Annotated[bool, typer.Option("--paper", help="List the paper's settings per model and task.")] = False,
) -> None:
    """Decoders: names, fields, defaults, and the paper's settings."""
    if name is not None:
        _one(name)
        return
    entries = {key: value.strategy for key, value in PAPER.items()} if paper else PRESETS
    table = Table("name", "what it does" if not paper else "blocks", "fields")
    for key, strategy in entries.items():
        changed = _listed(strategy, other_than=type(strategy)())
        if paper:
            table.add_row(key, str(PAPER[key].n_blocks), changed)
            continue
        rule = (type(strategy).__doc__ or "").splitlines()[0]
        table.add_row(key, f"{rule} Here with {changed}." if changed else rule, _listed(strategy))
    console.print(table)
    if not paper:
        console.print("One strategy's fields: dapd strategies NAME. The paper's settings: dapd strategies --paper.")


def _listed(strategy: Selects, other_than: Selects | None = None) -> str:
    """The fields with their values; where another strategy is given, those that differ from it."""
    values = fields_of(strategy)
    return ", ".join(f"{k}={v}" for k, v in values.items() if other_than is None or v != getattr(other_than, k))


def _one(name: str) -> None:
    preset = named(name)
    docs = explain(type(preset.strategy))
    console.print(f"[bold]{name}[/bold]: {' '.join((type(preset.strategy).__doc__ or '').split())}", highlight=False)
    table = Table("field", "value", "meaning")
    for field, value in fields_of(preset.strategy).items():
        table.add_row(field, str(value), docs.get(field, ""))
    console.print(table)
    if preset.n_blocks > 1:
        console.print(f"run with {preset.n_blocks} blocks")


def doctor() -> None:
    """Versions, devices, kernels; what is missing and how to get it."""
    table = Table("what", "found", "note")
    table.add_row("dapd", _version("dapd") or "source tree", f"Python {platform.python_version()}")
    for package in ("torch", "safetensors", "jaxtyping"):
        table.add_row(package, _version(package) or "missing", "core")
    for extra, packages in EXTRAS.items():
        for package, purpose in packages.items():
            version = _version(package)
            note = purpose if version else f"{purpose}: pip install 'dapd[{extra}]'"
            table.add_row(package, version or "missing", escape(note))
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            facts = torch.cuda.get_device_properties(number)
            table.add_row(f"cuda:{number}", facts.name, f"{facts.total_memory / 2**30:.0f} GiB")
    else:
        table.add_row("cuda", "no", f"decoding runs on the CPU with {plural(torch.get_num_threads(), 'thread')}")
    triton = importlib.util.find_spec("triton") is not None
    table.add_row("attention", "torch SDPA", "everywhere")
    kernels = torch.cuda.is_available() and triton
    table.add_row("attention capture", "Triton" if kernels else "torch", "only in the layers that a decoder reads")
    table.add_row("triton", "yes" if triton else "no", "not needed: every function has a torch version")
    console.print(table)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
