"""`--model dapd` in lm-eval's own command line, with the arguments that lm-eval passes to a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lm_eval.api.registry import register_model

from dapd.errors import DapdError
from dapd.evaluation.harness.adapter import HarnessLM
from dapd.evaluation.harness.options import EvalOptions, configured
from dapd.evaluation.harness.run import setup
from dapd.evaluation.runs import Run
from dapd.evaluation.world import World, local_device
from dapd.models.devices import pick_dtype
from dapd.own_models import load_named


@register_model("dapd")
class DapdLM(HarnessLM):
    """pretrained=MODEL,strategy=NAME, and fields of the strategy, the loop or the evaluation: tau_max=0.2,chat=none.

    With out=DIR the samples and their costs are kept there, and a killed run goes on from them.
    """

    def __init__(
        self,
        pretrained: str,
        strategy: str = "dapd-staged",
        out: str | None = None,
        dtype: str | None = None,
        **more: Any,
    ) -> None:
        harness = {key: more.pop(key, None) for key in ("batch_size", "max_batch_size", "device")}
        chosen, options = configured(
            strategy, {key: str(value) for key, value in more.items()}, EvalOptions(batch=_batch(harness["batch_size"]))
        )
        model = load_named(pretrained, device=_device(harness["device"]), dtype=pick_dtype(dtype))
        world = World.from_environment()
        run = None if out is None else Run.open(Path(out), setup(model, chosen, options))
        super().__init__(model, chosen, options, run, world)


def _batch(size: Any) -> int:
    try:
        return int(size or 1)
    except ValueError:
        raise DapdError(f"batch_size is {size!r}; it must be a whole number") from None


def _device(device: str | None) -> str | None:
    """The device to use. If the user names none, lm-eval passes cuda:0, to all processes and even without a GPU."""
    if device is None or (device.startswith("cuda") and not torch.cuda.is_available()):
        return None
    return (local_device() or device) if device in ("cuda", "cuda:0") else device
