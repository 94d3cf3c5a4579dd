"""Small data sets of the public benchmarks' form, with questions of our own."""

import json
from pathlib import Path
from typing import Any

N = 10
"""Documents of each task."""


def write_data(folder: Path, n: int = N) -> Path:
    """All files of a data folder."""
    rows: dict[str, list[dict[str, Any]]] = {
        "gsm8k/test.jsonl": [{"question": f"What is {i} plus 1?", "answer": f"#### {i + 1}"} for i in range(n)],
        "humaneval/HumanEval.jsonl": [
            {
                "task_id": f"HumanEval/{i}",
                "prompt": f'def add{i}(x):\n    """Adds."""\n',
                "entry_point": f"add{i}",
                "canonical_solution": f"    return x + {i}\n",
                "test": f"def check(f):\n    assert f(2) == {i + 2}\n",
            }
            for i in range(n)
        ],
        "mbpp/mbpp.jsonl": [
            {
                "task_id": 11 + i,
                "text": f"Write times{i}.",
                "code": f"def times{i}(x): return x * {i}",
                "test_list": [f"assert times{i}({x}) == {x * i}" for x in range(3)],
            }
            for i in range(n)
        ],
        "math500/test.jsonl": [
            {"problem": f"What is ${i}^2$?", "solution": f"It is $\\boxed{{{i * i}}}$.", "answer": str(i * i)}
            for i in range(n)
        ],
        "ifeval/input_data.jsonl": [
            {"key": i, "prompt": f"Say {i}.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
            for i in range(n)
        ],
    }
    rows["gsm8k/train.jsonl"] = rows["gsm8k/test.jsonl"]
    (folder / "nltk_data" / "tokenizers" / "punkt_tab").mkdir(parents=True)
    for name, content in rows.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in content))
    return folder
