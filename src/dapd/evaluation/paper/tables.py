"""Every table of the paper as a function from a study to a report."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dapd.errors import DapdError, unknown
from dapd.evaluation.harness.run import evaluate
from dapd.evaluation.paper import cells, numbers
from dapd.evaluation.paper.bench import parallelbench
from dapd.evaluation.paper.multi import multi
from dapd.evaluation.paper.report import MEASURES, Line, Report
from dapd.evaluation.paper.study import Study
from dapd.evaluation.paper.tau_min import tau_min
from dapd.mrf import report as mrf
from dapd.mrf.storage import SHIPPED, load_run


def lm_eval(study: Study, *, table: str) -> Report:
    """One of the tables made of lm-eval's tasks; cells that another table has decoded already are not decoded again."""
    if table != "main":
        study.only_llada(table)
    chosen = study.cells(cells.TABLES[table](study.family))
    lines = []
    for number, cell in enumerate(chosen, 1):
        study.tell(f"{table} {number}/{len(chosen)}: {cell.row} on {cell.column}")
        lines.append(_line(study, cell))
    return Report(table, numbers.LABELS[table], tuple(lines), (*study.notes(), *_notes(table)))


def _line(study: Study, cell: cells.Cell) -> Line:
    name = cells.HARNESS.get(cell.task, cell.task)
    options = study.harness(cell)
    folder = study.folder(cell.key)
    summary = evaluate(study.model, cell.setting, [name], options, folder, study.progress)[0]
    ours = {"accuracy": summary.accuracy, "steps": summary.nfe, "tps": summary.tps}
    extra = {
        **{MEASURES[name]: value for name, value in ours.items() if name not in cell.published},
        "tokens per pass": summary.tokens_per_forward,
        "TPS as Fast-dLLM counts": summary.tps_fast_dllm,
        "TPS with HumanEval's prompt": summary.tps_fast_dllm_2025,
    }
    measures = {name: value for name, value in ours.items() if name in cell.published}
    return Line(cell.row, cell.column, summary.n, measures, cell.published, extra)


def _notes(table: str) -> list[str]:
    out = []
    if table in ("tps", "long", "blocks"):
        out.append(
            "TPS: ours are generated tokens before the first EOS, or up to the end of the turn, over generation time. "
            "The paper measured on an L40S and does not say what it counts; 106 TPS at 45 steps beside 34 at 48 fits a "
            "count with HumanEval's prompt."
        )
    if table == "eos":
        out.append("EOS-Inf: HumanEval bans EOS, the other tasks put it off (LLaDA's own choice; the paper's is open).")
    if table in ("main", "eos"):
        out.append("IFEval: the paper swept the baselines and does not name its choice; these are their defaults.")
    return out


def toy(study: Study) -> Report:
    """The Markov random field: the models that come with the package; a limit makes it quick."""
    options = mrf.ReportOptions() if study.scope.limit is None else mrf.QUICK_OPTIONS
    results = mrf.build(load_run(SHIPPED, device=str(study.model.network.device)), options, tell=study.tell)
    quick = () if study.scope.limit is None else ("A quick run, because of --limit: few paths and samples.",)
    return Report("toy", numbers.LABELS["toy"], (), quick, results.to_markdown())


TABLES: dict[str, Callable[[Study], Report]] = {
    **{name: partial(lm_eval, table=name) for name in cells.TABLES},
    "parallelbench": parallelbench,
    "multi": multi,
    "tau_min": tau_min,
    "toy": toy,
}

WHOLE = ("tau_min", "toy")
"""Tables that can only be run as a whole."""


def build(table: str, study: Study) -> Report:
    """Run a table, or the part of it that is asked for, and write it as JSON and Markdown."""
    if table not in TABLES:
        raise unknown("table", table, TABLES)
    if table in WHOLE and study.scope.only:
        raise DapdError(f"the table {table} is run as a whole; leave out --only")
    report = TABLES[table](study)
    study.write_json(table, report.to_json())
    study.write(table, ".md", report.to_markdown())
    return report
