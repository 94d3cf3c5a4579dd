"""EOS overflow: the baselines in one block, with EOS held back, and in four blocks (tab:eos_overflow_1block).

    dapd paper --table eos --model GSAI-ML/LLaDA-8B-Instruct --out paper/llada --confirm-run-unsafe-code

The four-block cells are those of the main table: in the same folder they are not decoded again.

This script is that command: python experiments/paper_eos.py --model ... A killed run goes on where it was.
"""

import sys

from dapd.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["paper", "--table", "eos"]
    main()
