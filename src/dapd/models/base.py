"""What the engine knows of a model: two slices in, logits and (on request) attention out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dapd.errors import DapdError
from dapd.models.cache import KVCache
from dapd.models.columns import Span


@dataclass(frozen=True)
class Profile:
    """The special ids of one model. They come from its checkpoint: no id is ever assumed."""

    mask_id: int
    eos_id: int
    pad_id: int
    eot_id: int | None = None
    """End of turn; None where the model has none."""
    bos_id: int | None = None

    @classmethod
    def from_config(cls, config: Mapping[str, Any], mask_id: int | None, eot_id: int | None) -> Profile:
        """The ids a checkpoint's config gives; `mask_id` overrides its own, `eot_id` stands in where it has none."""
        mask = config.get("mask_token_id") if mask_id is None else mask_id
        if mask is None:
            raise DapdError("the config has no mask_token_id; pass mask_id=... (it is never guessed)")
        return cls(
            mask_id=mask,
            eos_id=config["eos_token_id"],
            pad_id=config["pad_token_id"],
            eot_id=config.get("eot_token_id", eot_id),
            bos_id=config.get("bos_token_id"),
        )

    def check(self, vocab_size: int) -> None:
        for name, value in vars(self).items():
            optional = name in ("eot_id", "bos_id")
            if not isinstance(value, int) and not (optional and value is None):
                raise DapdError(f"{name} is {value!r}; the checkpoint must give one whole number")
            if value is not None and not 0 <= value < vocab_size:
                raise DapdError(f"{name} is {value}, outside of the vocabulary (0..{vocab_size - 1})")
        if self.mask_id == self.eos_id:
            raise DapdError(
                f"mask_id and eos_id are both {self.mask_id}: a committed EOS could not be told from a mask"
            )


@contextmanager
def reading_config(family: str) -> Iterator[None]:
    """Turn what goes wrong while a config is read into an error that names the entry."""
    try:
        yield
    except KeyError as error:
        raise DapdError(f"the {family} config has no {error.args[0]}") from None
    except (TypeError, ValueError) as error:
        if isinstance(error, DapdError):
            raise
        raise DapdError(f"the {family} config holds a value of the wrong kind: {error}") from None


@dataclass(frozen=True)
class Capture:
    """A request for attention: the mean over heads and `layers`, from `queries` to `keys` (columns of the canvas)."""

    layers: frozenset[int]
    queries: slice
    keys: slice


@dataclass(frozen=True)
class Prediction:
    """One forward pass, for the columns of a window."""

    logits: Float[Tensor, "batch n vocab"]
    """Row i predicts window column i: a model's own shift is undone here."""
    attention: Float[Tensor, "batch n k"] | None = None
    """Captured attention in fp32; each row is a part of a softmax over all valid keys, not renormalised."""


class MaskedLM(Protocol):
    """A masked language model with bidirectional attention."""

    @property
    def profile(self) -> Profile: ...
    @property
    def n_layers(self) -> int: ...
    @property
    def max_length(self) -> int: ...
    @property
    def lookback(self) -> int:
        """How many columns to the left the row that predicts a column lies: 0 for LLaDA, 1 for Dream."""
        ...

    @property
    def device(self) -> torch.device: ...

    # Besides: `graphable` (False where it is missing) says that a pass reads no tensor on the host.

    def __call__(
        self,
        tokens: Int[Tensor, "batch length"],
        span: Span,
        window: slice,
        *,
        valid: Bool[Tensor, "batch length"] | None = None,
        cache: KVCache | None = None,
        capture: Capture | None = None,
    ) -> Prediction:
        """Recompute the columns `span` (the others come from `cache`) and predict the columns `window`.

        A span that differs from row to row names the columns of each; what it cannot predict or capture may be
        anything that is finite. Models without a cache are never asked for one.
        """
        ...
