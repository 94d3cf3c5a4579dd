"""How a worker gets its model, in a form that can be sent to another process."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from dapd.errors import DapdError
from dapd.evaluation.fingerprint import fingerprint
from dapd.generation import DiffusionLM
from dapd.io import own
from dapd.models.devices import default_dtype
from dapd.own_models import is_own_model, load_named
from dapd.scale.work import Worker


@dataclass(frozen=True)
class Recipe:
    """A model by name, where it runs and how many texts share its passes."""

    model: str
    device: str | None = None
    """None: a GPU if there is one."""
    dtype: torch.dtype | None = None
    fp8: bool = False
    places: int = 16
    """Texts that share a forward pass, at most."""
    weights: str | None = None
    """The digest that the weights must have; None: they are not compared."""
    own_files: tuple[Path, ...] = ()
    """Files with strategies of the user's own."""
    own_sources: tuple[str, ...] = ()
    """The user's own source files, modules included, whose lines an error shows where they fail."""
    paths: tuple[str, ...] = ()
    """Folders in which modules of the user's own are looked for."""

    def load(self) -> DiffusionLM:
        return load_named(self.model, device=self.device, dtype=self.dtype, fp8=self.fp8)

    def here(self, device: str) -> DiffusionLM:
        """The model for the process that leads workers on that kind of device: it has the same weights, in main memory.

        It encodes prompts and identifies the weights; it decodes nothing.
        """
        dtype = torch.bfloat16 if self.fp8 else self.dtype
        if dtype is None and not is_own_model(self.model):  # a function of the user's own may take no dtype
            dtype = default_dtype(device)
        lm = load_named(self.model, device="cpu", dtype=dtype)
        return DiffusionLM(lm.network, lambda: lm.tokenizer, name=f"{lm.name} (fp8)") if self.fp8 else lm

    def for_workers_of(self, here: DiffusionLM) -> Recipe:
        """The recipe to send to workers, with what only this process knows: the digest, own files, module paths."""
        # Quantised weights have another digest, and random weights differ between kinds of device.
        certain = not self.fp8 and not self.model.startswith("random:")
        return replace(
            self,
            weights=fingerprint(here) if certain else None,
            own_files=tuple(path.resolve() for path in own.files()),
            own_sources=own.sources(),
            paths=tuple(
                os.path.abspath(path) for path in sys.path if not path.startswith((sys.prefix, sys.base_prefix))
            ),
        )

    def worker(self) -> Worker:
        """A worker with this model, in this process."""
        lm = self.load()
        if self.weights is not None and fingerprint(lm) != self.weights:
            raise DapdError(f"this worker has other weights of {self.model} than the process that started the job")
        return Worker(lm, self.places)
