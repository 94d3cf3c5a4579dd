"""Five independent questions a prompt: accuracy, steps, heat map, segment counts, trajectories.

That is tab:analysis_performance, fig:analysis_first30, fig:ours_vs_fd and the appendix's trajectories.

    dapd paper --table multi --model GSAI-ML/LLaDA-8B-Instruct --out paper/llada

TriviaQA comes from the hub, or from --data-dir DATA with DATA/triviaqa/triviaqa_dpr_test.jsonl. --sweep runs the
paper's sweeps of the baselines. Traces with their tokens are kept under runs/multi_*/traces, for the viewer.

This script is that command: python experiments/paper_multi.py --model ... A killed run goes on where it was.
"""

import sys

from dapd.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["paper", "--table", "multi"]
    main()
