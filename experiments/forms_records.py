"""Prescribed forms on the lab's records: `python experiments/forms_records.py --prompts 32`.

Decodes sentences as JSON objects with each decoder, free and with the schema of the record, and prints for both the
share of valid texts, the share that is right, passes, and milliseconds per pass. The last line is JSON.
"""

from __future__ import annotations

import json
import random
import time
from typing import Annotated, Any

import torch
import typer

from dapd.cli import run
from dapd.generation import DEFAULT_MODEL, Completion, DiffusionLM, load
from dapd.lab.tasks import TASKS
from dapd.lab.tasks.base import Example, Split

DECODERS = "original,fast-dllm,eb-sampler,klass,dapd-staged,dapd-direct"
TYPES = {str: "string", int: "integer", bool: "boolean"}


def main(
    model: Annotated[str, typer.Option("--model", "-m")] = DEFAULT_MODEL,
    prompts: Annotated[int, typer.Option(help="Test prompts.")] = 16,
    new_tokens: Annotated[int, typer.Option(help="New tokens.")] = 96,
    decoders: Annotated[str, typer.Option(help="Presets, separated by commas.")] = DECODERS,
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Measure what a prescribed form changes in validity, accuracy and time."""
    torch.set_num_threads(1)
    lm = load(model, device="cpu")
    rng = random.Random(seed)
    examples = [TASKS["record"].make(rng, Split.TEST) for _ in range(prompts)]
    rows = []
    for name in decoders.split(","):
        for formed in (False, True):
            rows.append(measured(lm, name, examples, new_tokens, formed))
            print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    print(json.dumps({"model": lm.name, "prompts": prompts, "new_tokens": new_tokens, "rows": rows}))


def measured(lm: DiffusionLM, name: str, examples: list[Example], new_tokens: int, formed: bool) -> dict[str, Any]:
    valid, right, passes, seconds = 0, 0.0, 0, 0.0
    for example in examples:
        schema = schema_of(example.meta["values"])
        lm.form(json_schema=schema)  # built beforehand: the time below is that of decoding
        began = time.perf_counter()
        done = decoded(lm, example.prompt, name, new_tokens, schema if formed else None)
        seconds += time.perf_counter() - began
        passes += done.nfe
        valid += keeps(done.text, example.meta["values"])
        right += TASKS["record"].score(example, done.text)
    n = len(examples)
    return {
        "decoder": name,
        "form": formed,
        "valid": round(valid / n, 3),
        "right": round(right / n, 3),
        "passes": round(passes / n, 1),
        "ms_per_pass": round(1000 * seconds / passes, 2),
    }


def decoded(lm: DiffusionLM, prompt: str, name: str, new_tokens: int, schema: dict[str, Any] | None) -> Completion:
    asked = [{"role": "user", "content": prompt}] if lm.tokenizer.has_chat else prompt
    return lm.generate(asked, strategy=name, max_new_tokens=new_tokens, early_stop=True, json_schema=schema)


def schema_of(values: dict[str, Any]) -> dict[str, Any]:
    """The schema of a record: the types of its values; lists hold one to three texts."""
    texts = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 3}
    properties = {key: texts if isinstance(v, list) else {"type": TYPES[type(v)]} for key, v in values.items()}
    return {"type": "object", "properties": properties, "required": list(values)}


def keeps(text: str, values: dict[str, Any]) -> bool:
    """Whether a text is JSON with these keys, and values of these types."""
    try:
        found = json.loads(text)
    except ValueError:
        return False
    return isinstance(found, dict) and {k: type(v) for k, v in found.items()} == {k: type(v) for k, v in values.items()}


if __name__ == "__main__":
    run(main)
