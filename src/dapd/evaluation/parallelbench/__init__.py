"""ParallelBench: its released files, our own scorers, and new instances of its list and grid tasks."""

from dapd.evaluation.parallelbench.data import GROUPS, BenchTask, Group, Sample, gold, load_task
from dapd.evaluation.parallelbench.make import Batch, make
from dapd.evaluation.parallelbench.run import TaskScore, evaluate, gold_scores, summarise
from dapd.evaluation.parallelbench.scoring import EXACT, METRICS, score
from dapd.evaluation.parallelbench.text import Tools

__all__ = [
    "EXACT",
    "GROUPS",
    "METRICS",
    "Batch",
    "BenchTask",
    "Group",
    "Sample",
    "TaskScore",
    "Tools",
    "evaluate",
    "gold",
    "gold_scores",
    "load_task",
    "make",
    "score",
    "summarise",
]
