"""The interface of a model: tokens and two sets of columns go in, logits and (on request) attention come out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dapd.errors import DapdError
from dapd.models.cache import KVCache
from dapd.models.columns import Span

Rows = Literal["position", "predictor"]
Keys = Literal["window", "canvas"]


@dataclass(frozen=True)
class Profile:
    """The special ids of one model, from its checkpoint. The mask's id is never guessed."""

    mask_id: int
    eos_id: int
    pad_id: int
    eot_id: int | None = None
    """End of turn; None where the model has none."""
    bos_id: int | None = None
    special: tuple[int, ...] = ()
    """Further ids that stand for no text (unknown, padding, separators, ...): they are never predicted."""

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], mask_id: int | None, eot_id: int | None, usual_eot_id: int | None
    ) -> Profile:
        """The ids that a checkpoint's config gives; `mask_id` and `eot_id` override its own.

        `usual_eot_id` is the end-of-turn id of checkpoints whose config does not give it.
        """
        mask = config.get("mask_token_id") if mask_id is None else mask_id
        if mask is None:
            raise DapdError("the config has no mask_token_id; pass mask_id=... (it is never guessed)")
        return cls(
            mask_id=mask,
            eos_id=config["eos_token_id"],
            pad_id=config["pad_token_id"],
            eot_id=config.get("eot_token_id", usual_eot_id) if eot_id is None else eot_id,
            bos_id=config.get("bos_token_id"),
        )

    def check(self, vocab_size: int) -> None:
        ids = {name: value for name, value in vars(self).items() if name != "special"}
        for name, value in (*ids.items(), *(("a special id", i) for i in self.special)):
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
    """Turn exceptions while a config is read into errors that name the entry."""
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
    """A request for attention: the mean over heads and `layers`, between columns of the window that is predicted."""

    layers: frozenset[int]
    rows: Rows = "position"
    """The query that stands for a column: its own, or that of the column which predicts it."""
    keys: Keys = "window"
    """The columns to which attention is captured: those of the window, or all of the canvas."""


@dataclass(frozen=True)
class Prediction:
    """The result of one forward pass, for the columns of a window."""

    logits: Float[Tensor, "batch n vocab"]
    """Entry i predicts column i of the window: a model's own shift is undone."""
    attention: Float[Tensor, "batch n k"] | None = None
    """Captured attention in fp32; each row is a part of a softmax over all valid keys and is not renormalised."""


class MaskedLM(Protocol):
    """A masked language model with bidirectional attention: what the decoding loop asks of a model."""

    @property
    def profile(self) -> Profile:
        """The special token ids."""
        ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def n_layers(self) -> int:
        """Layers whose attention can be captured."""
        ...

    @property
    def max_length(self) -> int:
        """Longest canvas, prompt and new tokens together."""
        ...

    @property
    def lookback(self) -> int:
        """How far to the left of a column the column lies that predicts it: 0 for LLaDA, 1 for Dream.

        The model itself undoes this shift; the loop must know it to plan which columns to compute.
        """
        ...

    @property
    def device(self) -> torch.device: ...

    @property
    def graphable(self) -> bool:
        """Whether a pass reads no tensor on the host, so that it can be recorded as a CUDA graph."""
        ...

    def __call__(
        self,
        tokens: Int[Tensor, "batch length"],
        span: Span,
        window: Span,
        *,
        valid: Bool[Tensor, "batch length"] | None = None,
        cache: KVCache | None = None,
        capture: Capture | None = None,
    ) -> Prediction:
        """Compute the columns `span` (the others come from `cache`) and predict the columns `window`.

        Rows are padded on the left; `valid` is False there, and None where there is no padding. Columns that are
        not in `span` cannot be predicted or captured; for them the answer may be anything finite. The columns of
        a window are adjacent in every row. A model that keeps no keys and values is only asked for whole canvases.
        """
        ...


def check_prediction(model: MaskedLM, answer: object, shape: tuple[int, int], keys: int | None) -> None:
    """Refuse a prediction of the wrong form, as a model of the user's own may give it.

    `shape` is the number of rows and of columns in the window, `keys` the number of columns to which attention was
    asked for; None: it was not.
    """
    name = type(model).__name__
    if not hasattr(answer, "logits"):
        raise DapdError(f"the model {name} answered {type(answer).__name__}, not a Prediction")
    wanted = [("answered logits", answer.logits, model.vocab_size)]
    if keys is not None:
        wanted.append(("captured attention", getattr(answer, "attention", None), keys))
    for what, tensor, last in wanted:
        if tensor is None or tensor.shape != (*shape, last):
            form = "None" if tensor is None else f"of shape {list(tensor.shape)}"
            raise DapdError(f"the model {name} {what} {form}; it must be of shape {[*shape, last]}")
