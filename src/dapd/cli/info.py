"""`dapd models`, `dapd strategies` and `dapd doctor`: what there is, what it means, and what is missing."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import torch
import typer
from rich.console import Console

from dapd.cli import tables
from dapd.io.fields import explain
from dapd.io.table import Table
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
    "forms": {"outlines_core": "texts that match a regular expression or a JSON Schema"},
    "parquet": {"pyarrow": "Parquet in dapd batch"},
    "ray": {"ray": "several machines"},
    "serve": {"fastapi": "dapd serve", "uvicorn": "dapd serve", "prometheus_client": "metrics of dapd serve"},
}
"""The packages that each extra installs, and what each is for."""


def models() -> None:
    """List the checkpoints that can be loaded, and the shapes that can be built with random weights."""
    rows = [
        ("LLaDA in miniature, trained on small tasks", "lab (ships inside), lab:any-text"),
        *((f"{name} ({one.name})", "\n".join(one.hub_ids)) for name, one in ARCHITECTURES.items()),
        ("any ...ForMaskedLM of transformers", "BERT, RoBERTa, ModernBERT, ESM-2, ..."),
    ]
    _show(("architecture", "checkpoints"), rows, "Checkpoints: dapd generate -m ID_OR_FOLDER")
    shapes = []
    for name, config in SHAPES.items():
        with torch.device("meta"):
            size = sum(p.numel() for p in Transformer(config).parameters())
        ids = f"{config.profile.mask_id} / {config.profile.eos_id} / {config.profile.eot_id}"
        heads = f"{config.n_heads}/{config.n_kv_heads}"
        shown = f"{size / 1e9:.2f} B" if size > 1e8 else f"{size / 1e6:.2f} M"
        shapes.append((name, ids, shown, str(config.n_layers), str(config.d_model), heads, str(config.vocab_size)))
    columns = ("shape", "mask / eos / end of turn", "parameters", "layers", "width", "heads", "token ids")
    tables.show(console, Table(columns, shapes, "Random weights: dapd generate -m random:SHAPE", words=2))


def strategies(
    name: Annotated[str | None, typer.Argument(help="Show one strategy's fields with their meaning.")] = None,
    paper: Annotated[bool, typer.Option("--paper", help="List the paper's settings per model and task.")] = False,
) -> None:
    """List the decoders: names, fields, defaults, and the paper's settings."""
    if name is not None:
        _one(name)
        return
    entries = {key: value.strategy for key, value in PAPER.items()} if paper else PRESETS
    rows = []
    for key, strategy in entries.items():
        changed = _listed(strategy, other_than=type(strategy)())
        if paper:
            rows.append((key, str(PAPER[key].n_blocks), changed))
            continue
        rule = (type(strategy).__doc__ or "").splitlines()[0]
        rows.append((key, f"{rule} Here with {changed}." if changed else rule, _listed(strategy)))
    _show(("name", "what it does" if not paper else "blocks", "fields"), rows)
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
    fields = fields_of(preset.strategy)
    _show(("field", "value", "meaning"), [(name, str(value), docs.get(name, "")) for name, value in fields.items()])
    if preset.n_blocks > 1:
        console.print(f"run with {preset.n_blocks} blocks")


def doctor() -> None:
    """Show versions, devices and kernels, what is missing, and how to get it."""
    rows = [("dapd", _version("dapd") or "source tree", f"Python {platform.python_version()}")]
    rows += [(package, _version(package) or "missing", "core") for package in ("torch", "safetensors", "jaxtyping")]
    for extra, packages in EXTRAS.items():
        for package, purpose in packages.items():
            version = _version(package)
            note = purpose if version else f"{purpose}: pip install 'dapd[{extra}]'"
            rows.append((package, version or "missing", note))
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            facts = torch.cuda.get_device_properties(number)
            rows.append((f"cuda:{number}", facts.name, f"{facts.total_memory / 2**30:.0f} GiB"))
    else:
        rows.append(("cuda", "no", f"decoding runs on the CPU with {plural(torch.get_num_threads(), 'thread')}"))
    triton = importlib.util.find_spec("triton") is not None
    kernels = torch.cuda.is_available() and triton
    rows += [
        ("attention", "torch SDPA", "everywhere"),
        ("attention capture", "Triton" if kernels else "torch", "only in the layers that a decoder reads"),
        ("triton", "yes" if triton else "no", "not needed: every function has a torch version"),
    ]
    _show(("what", "found", "note"), rows)


def _show(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], title: str = "") -> None:
    """Print a table of words. On a narrow screen they take more lines, and no word is cut."""
    tables.show(console, Table(head, rows, title, words=len(head)))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
