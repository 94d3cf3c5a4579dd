"""Longer generation: 256, 512 and 1024 tokens on HumanEval and GSM8K (tab:long_generation).

    dapd paper --table long --model GSAI-ML/LLaDA-8B-Instruct --out paper/llada --confirm-run-unsafe-code

This script is that command: python experiments/paper_long.py --model ... A killed run goes on where it was.
"""

import sys

from dapd.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["paper", "--table", "long"]
    main()
