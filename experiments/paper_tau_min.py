"""How normalised edge scores between masked positions are distributed (fig:tau_min).

    dapd paper --table tau_min --model GSAI-ML/LLaDA-8B-Instruct --out paper/llada

The same for Dream: --model Dream-org/Dream-v0-Instruct-7B --out paper/dream.

This script is that command: python experiments/paper_tau_min.py --model ... A killed run goes on where it was.
"""

import sys

from dapd.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["paper", "--table", "tau_min"]
    main()
