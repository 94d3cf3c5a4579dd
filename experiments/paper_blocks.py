"""Block-wise decoding on HumanEval: DAPD in 1, 4, 8 and 16 blocks beside the baselines in 4 (tab:block_generation).

    dapd paper --table blocks --model GSAI-ML/LLaDA-8B-Instruct --out paper/llada --confirm-run-unsafe-code

This script is that command: python experiments/paper_blocks.py --model ... A killed run goes on where it was.
"""

import sys

from dapd.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["paper", "--table", "blocks"]
    main()
