"""The paper's own numbers, read off its tables. Percent, forward passes, tokens per second."""

from __future__ import annotations

LABELS = {
    "main": "table 3, LLaDA and Dream; figure 3",
    "parallelbench": "table 4, ParallelBench; figure 4",
    "eos": "table 5, EOS overflow",
    "tps": "table 6, throughput on HumanEval",
    "long": "table 7, longer generation",
    "blocks": "table 8, block-wise decoding",
    "multi": "table 2, accuracy and steps; figures 1, 5 and 7 to 14",
    "tau_min": "figure 6, analysis of tau_min",
    "toy": "tables 1, 9 and 10, the toy's edges and degrees",
}
"""Our names of the tables, and where a reader of the paper finds them."""

TASKS = ("humaneval", "mbpp", "gsm8k", "math500", "ifeval")

AccuracySteps = tuple[float, float]

MAIN: dict[str, dict[str, tuple[AccuracySteps, ...]]] = {
    "llada": {
        "fast-dllm": ((37.2, 92.1), (20.6, 41.5), (76.8, 72.8), (28.0, 95.6), (58.3, 100.0)),
        "eb-sampler": ((37.2, 110.4), (19.4, 52.6), (76.1, 86.9), (28.2, 113.2), (57.0, 136.3)),
        "klass": ((37.8, 149.4), (26.0, 53.9), (75.6, 93.9), (26.4, 118.6), (58.4, 139.0)),
        "dapd-staged": ((36.6, 45.2), (40.4, 37.6), (71.7, 48.9), (29.0, 58.8), (62.0, 50.1)),
        "dapd-direct": ((37.2, 22.7), (37.2, 20.8), (70.9, 32.5), (27.2, 45.9), (57.3, 42.9)),
    },
    "dream": {
        "fast-dllm": ((43.3, 112.2), (30.6, 67.7), (47.7, 90.2), (17.5, 158.7), (18.2, 53.2)),
        "eb-sampler": ((45.7, 155.4), (30.6, 186.5), (44.5, 127.6), (13.0, 190.5), (7.1, 115.2)),
        "klass": ((59.8, 133.3), (34.4, 60.8), (45.1, 154.4), (13.0, 204.2), (7.1, 132.1)),
        "dapd-staged": ((42.1, 111.6), (46.4, 49.3), (56.0, 69.5), (25.4, 59.7), (39.2, 90.0)),
        "dapd-direct": ((43.3, 117.8), (48.2, 26.9), (59.4, 55.6), (26.4, 56.0), (38.7, 18.6)),
    },
}
"""Model -> method -> accuracy and steps for each of TASKS."""

PARALLELBENCH: dict[str, tuple[AccuracySteps, ...]] = {
    "fast-dllm": ((78.2, 27.3), (60.4, 30.8), (55.9, 9.9), (29.6, 22.6)),
    "eb-sampler": ((77.7, 35.4), (60.5, 44.6), (59.8, 23.9), (28.6, 30.0)),
    "klass": ((78.0, 34.9), (60.7, 39.8), (57.2, 20.5), (30.1, 29.6)),
    "dapd-staged": ((88.2, 19.1), (59.2, 24.6), (55.3, 18.7), (27.3, 18.8)),
    "dapd-direct": ((86.5, 17.9), (59.4, 18.9), (54.8, 10.8), (23.4, 20.1)),
}
"""Method -> score and steps on words to sentence, paraphrase, waiting line and puzzle."""

EOS: dict[str, dict[str, tuple[AccuracySteps, ...]]] = {
    "klass": {
        "1 block": ((11.0, 97.3), (19.8, 43.3), (26.3, 72.6), (3.0, 83.4), (40.1, 96.5)),
        "1 block + EOS-Inf": ((38.4, 170.0), (41.4, 177.1), (64.8, 124.4), (27.4, 155.3), (64.9, 221.8)),
        "4 blocks": ((37.8, 149.4), (26.0, 53.9), (75.6, 93.9), (26.4, 118.6), (58.4, 139.0)),
    },
    "fast-dllm": {
        "1 block": ((10.4, 40.7), (9.6, 34.2), (7.5, 89.4), (1.8, 76.4), (41.7, 31.7)),
        "1 block + EOS-Inf": ((37.2, 107.9), (40.4, 153.1), (68.5, 110.0), (27.8, 132.9), (64.7, 178.4)),
        "4 blocks": ((37.2, 92.1), (20.6, 41.5), (76.8, 72.8), (28.0, 95.6), (58.3, 100.0)),
    },
    "eb-sampler": {
        "1 block": ((13.4, 85.9), (8.0, 61.1), (6.6, 143.4), (2.0, 136.3), (30.7, 108.3)),
        "1 block + EOS-Inf": ((37.8, 119.2), (40.8, 104.8), (68.9, 91.3), (28.4, 127.3), (64.5, 157.9)),
        "4 blocks": ((37.2, 112.1), (19.4, 52.6), (76.1, 86.9), (28.2, 113.2), (57.0, 136.3)),
    },
}
"""Method -> setting -> accuracy and steps for each of TASKS. EB-Sampler's HumanEval steps differ from MAIN's in the
paper itself."""

TPS = {
    "dapd-staged": (36.6, 45.2, 106.0),
    "fast-dllm": (37.2, 92.1, 51.4),
    "eb-sampler": (37.2, 110.4, 39.2),
    "klass": (37.8, 149.4, 25.6),
    "original": (39.0, 256.0, 20.4),
}
"""Method -> accuracy, steps and tokens per second on an L40S, for HumanEval."""

LONG = {
    "humaneval": {256: (36.6, 45.2, 106.0), 512: (32.9, 55.9, 106.6), 1024: (31.7, 67.5, 93.6)},
    "gsm8k": {256: (70.7, 48.2, 33.9), 512: (72.8, 68.4, 39.0), 1024: (70.7, 79.9, 45.8)},
}
"""Task -> length -> accuracy, steps, tokens per second. GSM8K at 256 differs from MAIN's in the paper itself."""

BLOCKS = {
    ("dapd-staged", 1): (36.6, 106.0),
    ("dapd-staged", 4): (37.8, 57.1),
    ("dapd-staged", 8): (39.6, 43.6),
    ("dapd-staged", 16): (41.5, 34.6),
    ("fast-dllm", 4): (37.2, 51.4),
    ("eb-sampler", 4): (37.2, 39.2),
    ("klass", 4): (37.8, 25.6),
}
"""Method and number of blocks -> accuracy and tokens per second, for HumanEval."""

MULTI = {
    "original": (52.64, 256.0),
    "fast-dllm": (52.12, 124.4),
    "klass": (52.2, 177.4),
    "eb-sampler": (51.2, 131.3),
    "dapd-staged": (52.08, 66.2),
}
"""Method -> accuracy and steps on five questions at a time."""

TAU_MIN = {"llada": 0.01, "dream": 0.005}
"""Model -> edge threshold at the start; the paper places it in the near-zero tail of the scores, without a number."""

TITLES = {
    "original": "Original",
    "fast-dllm": "Fast-dLLM",
    "eb-sampler": "EB-Sampler",
    "klass": "KLASS",
    "dapd-staged": "DAPD-Staged",
    "dapd-direct": "DAPD-Direct",
    "humaneval": "HumanEval",
    "mbpp": "MBPP",
    "gsm8k": "GSM8K",
    "math500": "Math500",
    "ifeval": "IFEval",
}
"""Our names of methods and tasks, and the paper's."""
