"""The paper's tables and figures: what each asks for, its published numbers, and ours beside them."""

from dapd.evaluation.paper.report import Line, Report
from dapd.evaluation.paper.study import Scope, Study
from dapd.evaluation.paper.tables import TABLES, build

__all__ = ["TABLES", "Line", "Report", "Scope", "Study", "build"]
