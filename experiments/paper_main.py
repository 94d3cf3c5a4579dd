"""Accuracy and steps on five benchmarks (tab:main_numeric_results), and their figure (fig:llada_dream_comparison).

    dapd paper --table main --model GSAI-ML/LLaDA-8B-Instruct --out paper/llada --confirm-run-unsafe-code

For Dream: --model Dream-org/Dream-v0-Instruct-7B --out paper/dream. The baselines of LLaDA run in four blocks of 64,
DAPD and everything on Dream in one. HumanEval and MBPP run code that the model wrote, hence the confirmation.

This script is that command: python experiments/paper_main.py --model ... A killed run goes on where it was.
"""

import sys

from dapd.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["paper", "--table", "main"]
    main()
