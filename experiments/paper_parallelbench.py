"""ParallelBench: score and steps of every method, and the figure (tab:parallelbench_numeric_results, fig:pb).

    dapd paper --table parallelbench --model GSAI-ML/LLaDA-8B-Instruct --out paper/llada --data-dir DATA

DATA/parallelbench holds the released files; they have no licence that lets us ship them. Grammar (language_tool_python)
and BERTScore (bert_score) count where they are installed and are reported as not scored where they are not.

This script is that command: python experiments/paper_parallelbench.py --model ... A killed run goes on where it was.
"""

import sys

from dapd.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["paper", "--table", "parallelbench"]
    main()
