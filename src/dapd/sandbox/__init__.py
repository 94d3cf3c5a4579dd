"""Judging code that nobody vouches for: the program in one confined process, the check in another, out of its reach.

`judge(program, check)` is the whole interface. What it promises, and what no process sandbox can promise, is described
in docs/evaluation.md.
"""

from dapd.sandbox.judge import Limits, Verdict, judge, judge_many

__all__ = ["Limits", "Verdict", "judge", "judge_many"]
