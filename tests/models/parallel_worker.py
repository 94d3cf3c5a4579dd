"""What a network shows of itself, in one process or as one of several: `torchrun ... parallel_worker.py FOLDER`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dapd.canvas import Canvas
from dapd.decoding import Options, decode
from dapd.decoding.sampling import Sampling
from dapd.models import Capture, KVCache, KVPool, Transformer, load_network, random
from dapd.settings import strategy
from helpers_models import CONFIGS, left_padded, tokens

SHARP = 6.0
STORED = ("llada-tied", "dream")
"""Networks that come from checkpoints; another one has random weights."""
RUNS: dict[str, tuple[str, Options]] = {
    "dapd-staged": ("dapd-staged", Options(record_edges=True)),
    "dapd-direct": ("dapd-direct", Options(early_stop=True)),
    "klass": ("klass", Options(n_blocks=2)),
    "fast-dllm, dual": ("fast-dllm", Options(n_blocks=2, reuse="dual")),
    "dapd-staged, settled": ("dapd-staged", Options(reuse="settled", settle=2)),
    "eb-sampler, drawn": ("eb-sampler", Options(sampling=Sampling(temperature=0.7), seed=3)),
    "dream, its own draws": ("dream", Options(n_blocks=2)),
}


@torch.no_grad()
def shown(network: Transformer) -> dict[str, Any]:
    """Logits, captured attention and whole decodings."""
    padded, valid = left_padded(24, 17, 9)
    everything, window = slice(0, 24), slice(8, 24)
    capture = Capture(frozenset({1, 3}), keys="canvas")
    one = network(padded, everything, window, valid=valid, capture=capture)
    cache = KVCache(KVPool(2, 16))
    network(tokens(2, 16), slice(0, 16), slice(0, 16), cache=cache)
    cached = network(tokens(2, 16), slice(8, 16), slice(9, 16), cache=cache, capture=replace(capture, rows="predictor"))
    canvases = [Canvas.blank(row.tolist(), 8, mask_id=network.profile.mask_id) for row in tokens(3, 10, seed=5)]
    return {
        "tensors": [one.logits, one.attention, cached.logits, cached.attention],
        "runs": {
            name: [
                (step.row, step.commit.tolist(), step.token[step.commit].tolist(), step.canvas.tokens.tolist())
                for step in decode(network, canvases, strategy(preset), options)
            ]
            for name, (preset, options) in RUNS.items()
        },
    }


def main() -> None:
    from dapd.errors import DapdError
    from dapd.models.parallel import join

    folder = Path(sys.argv[1])
    mesh, _ = join(torch.device("cpu"))
    found: dict[str, Any] = {name: shown(load_network(folder / name, mesh=mesh)) for name in STORED}
    network = random(CONFIGS["llada"], sharpness=SHARP, mesh=mesh)
    found["random"] = shown(network)
    found["held"] = sum(weight.numel() for weight in network.held().values())
    canvas = Canvas.blank([1, 2], 4, mask_id=network.profile.mask_id)
    for what, call in {
        "odd": lambda: random(CONFIGS["dream-tied"], mesh=mesh),
        "recorded": lambda: decode(network, [canvas], strategy("original"), Options(graphs=True)),
    }.items():
        try:
            call()
        except DapdError as error:
            found[what] = str(error)
    torch.save(found, folder / f"{mesh.get_local_rank()}.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
