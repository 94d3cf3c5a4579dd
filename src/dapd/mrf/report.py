"""The report on a run: the paper's three tables beside its numbers, the study, and what they were made with."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dapd.io.files import make_folder, write_text
from dapd.io.wording import plural
from dapd.mrf.adapter import ToyLM
from dapd.mrf.decoders import QUICK, Decoded, contenders, decode_with
from dapd.mrf.evaluate import Budget, Evaluation, evaluate
from dapd.mrf.paths import Paths, sample_paths
from dapd.mrf.recipe import to_json
from dapd.mrf.storage import Run, hardware
from dapd.mrf.study import ScoreStudy, study_scores
from dapd.mrf.tables import markdown


@dataclass(frozen=True)
class ReportOptions:
    """How much is sampled, and what the results file says about where they come from."""

    budget: Budget = dataclasses.field(default_factory=Budget)
    n_decoded: int = 1500
    """Samples of each decoder, spread evenly over the models."""
    quick: bool = False
    """One or two settings of each decoder instead of all."""
    command: str = ""
    """The command that makes this report, as the user typed it."""
    training: dict[str, Any] = dataclasses.field(default_factory=dict)
    """How the run was trained, where that is known."""


FILES = ("results.json", "report.md")

QUICK_OPTIONS = ReportOptions(Budget(n_paths=50, n_samples=500), n_decoded=200, quick=True)


@dataclass(frozen=True)
class Report:
    """Everything that was measured on one run."""

    run: Run
    options: ReportOptions
    paths: Paths
    """The sampling paths that were measured. Figures are drawn from them; the results file does not hold them."""
    evaluation: Evaluation
    scores: ScoreStudy
    decoders: list[Decoded]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return {
            "command": self.options.command,
            "seed": self.options.budget.seed,
            "hardware": hardware(str(self.run.network.embedding.device)),
            "seconds": round(self.seconds, 1),
            "training": self.options.training,
            "budget": dataclasses.asdict(self.options.budget),
            "recipe": to_json(self.run.recipe),
            "evaluation": dataclasses.asdict(self.evaluation),
            "scores": dataclasses.asdict(self.scores),
            "decoders": [dataclasses.asdict(row) for row in self.decoders],
        }

    def to_markdown(self) -> str:
        return markdown(self.evaluation, self.scores, self.decoders)


def build(run: Run, options: ReportOptions, tell: Callable[[str], None] = lambda _: None) -> Report:
    """Measure a run; `tell` is called with a line of text before each part."""
    began = time.monotonic()
    budget = options.budget
    network = run.network
    tell(f"{plural(network.n_models, 'model')}: {budget.n_paths} sampling paths each")
    paths = sample_paths(network, budget.n_paths, budget.seed)
    evaluation = evaluate(network, budget, paths)
    scores = study_scores(paths)
    model = ToyLM(network)
    rows = -(-options.n_decoded // network.n_models)
    decoded = []
    for contender in contenders():
        if not options.quick or (contender.family, contender.setting) in QUICK:
            tell(f"decoding with {contender.family}, {contender.setting}")
            decoded.append(decode_with(model, contender, rows, budget.seed))
    return Report(run, options, paths, evaluation, scores, decoded, time.monotonic() - began)


def write(report: Report, folder: Path) -> list[Path]:
    """Write results.json and report.md, and give their paths."""
    make_folder(folder)
    results, text = (folder / name for name in FILES)
    write_text(results, json.dumps(rounded(report.to_json()), indent=1) + "\n")
    write_text(text, report.to_markdown())
    return [results, text]


def rounded(value: Any) -> Any:
    """Numbers rounded to six digits, because the rest differs between machines; None where they are not finite."""
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(part) for part in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if torch.tensor(value).isfinite() else None
    return value
