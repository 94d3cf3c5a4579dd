"""Tokens per second on HumanEval (tab:tps_analysis).

    dapd paper --table tps --model GSAI-ML/LLaDA-8B-Instruct --out paper/llada --confirm-run-unsafe-code

Speed means something only on a GPU that nobody else uses, with one prompt at a time (the default).

This script is that command: python experiments/paper_tps.py --model ... A killed run goes on where it was.
"""

import sys

from dapd.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["paper", "--table", "tps"]
    main()
