"""The reference is whole and up to date: what the code defines occurs in its pages."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

import dapd

pytest.importorskip("typer")

from typer.testing import CliRunner

from dapd.cli.app import app
from dapd.cli.reference import page

DOCS = Path(__file__).parent.parent / "docs"
MADE = (DOCS / "commands.md").read_text(encoding="utf-8")
REFERENCE = (DOCS / "reference.md").read_text(encoding="utf-8")
PAGES = [*DOCS.rglob("*.md"), *DOCS.parent.glob("*.md")]


def test_the_page_of_commands_is_up_to_date() -> None:
    assert page() == MADE, "the commands or settings have changed: run `make reference`"


@pytest.mark.parametrize("kind", [dapd.Options, dapd.Sampling])
def test_every_field_is_explained(kind: type) -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| .*? \| (.*) \|$", MADE, re.M))
    for field in dataclasses.fields(kind):
        assert rows.get(field.name), f"{kind.__name__}.{field.name} has no meaning in docs/commands.md"


@pytest.mark.parametrize("name", dapd.__all__)
def test_every_public_name_is_in_the_reference(name: str) -> None:
    assert re.search(rf"`{name}\b", REFERENCE)


@pytest.mark.parametrize("name", [*dapd.PRESETS, "generate", "plot", "lab score", "bench step", "parallelbench gold"])
def test_every_decoder_and_command_has_a_heading(name: str) -> None:
    assert re.search(rf"^### `(dapd )?{name}`$", MADE, re.M)


@pytest.mark.parametrize("command", re.findall(r"^### `dapd (.+)`$", MADE, re.M))
def test_help_is_whole_at_80_columns(command: str) -> None:
    shown = CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": "80"}).output
    assert "--help" in shown
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown


@pytest.mark.parametrize("file", PAGES, ids=lambda file: str(file.relative_to(DOCS.parent)))
def test_links_between_the_pages_lead_somewhere(file: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", file.read_text(encoding="utf-8"), flags=re.M | re.S)
    for to, _, anchor in (link.partition("#") for link in re.findall(r"\]\((?!http)([^)]+)\)", text)):
        target = file.parent / to if to else file
        assert target.exists(), f"{file.name} links to {to}"
        if anchor:
            titles = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.M)
            heads = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
            assert anchor in heads, f"{file.name} links to {to}#{anchor}"


def test_the_citation_names_the_version_and_the_paper() -> None:
    said = (DOCS.parent / "CITATION.cff").read_text(encoding="utf-8")
    project = (DOCS.parent / "pyproject.toml").read_text(encoding="utf-8")
    version = re.search(r'^version = "(.+)"$', project, re.M)
    assert version
    assert f"\nversion: {version[1]}\n" in said
    assert "DAPD: Dependency-Aware Parallel Decoding via Attention for Diffusion LLMs" in said
    for name in ("Bumjun", "Dongjae", "Moongyu", "Albert"):
        assert f"given-names: {name}" in said
