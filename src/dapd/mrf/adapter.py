"""A stack of toy networks as a model that the engine can decode with."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor

from dapd.canvas import Canvas
from dapd.errors import DapdError
from dapd.models.base import Capture, Prediction, Profile
from dapd.models.cache import KVCache
from dapd.models.columns import Span
from dapd.mrf.data import LENGTH, MASK_ID, N_VALUES
from dapd.mrf.network import StackedRADD

END_ID = MASK_ID + 1
"""For EOS and padding, which the engine wants and the toy lacks: never predicted, never on a canvas."""
VOCAB_SIZE = END_ID + 1


class ToyLM:
    """The rows of a batch are dealt out in order: with m models, the first 1/m of the rows is decoded by the first."""

    lookback = 0
    max_length = LENGTH

    def __init__(self, network: StackedRADD) -> None:
        self.network = network
        self.profile = Profile(mask_id=MASK_ID, eos_id=END_ID, pad_id=END_ID)
        self.profile.check(VOCAB_SIZE)

    @property
    def n_layers(self) -> int:
        return self.network.shape.n_layers

    @property
    def device(self) -> torch.device:
        return self.network.embedding.device

    def blank(self, n_rows: int) -> Canvas:
        """A canvas of masks for every model, `n_rows` each."""
        rows: list[list[int]] = [[]] * (n_rows * self.network.n_models)
        return Canvas.blank(rows, LENGTH, mask_id=MASK_ID, pad_id=END_ID, device=self.device)

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
        if cache is not None or valid is not None:
            raise DapdError("the toy network decodes whole sequences of nine tokens: no reuse and no padding")
        if len(tokens) % self.network.n_models:
            raise DapdError(f"{len(tokens)} rows cannot be dealt out evenly to {self.network.n_models} models")
        found = self.network(tokens.view(self.network.n_models, -1, LENGTH), attention=capture is not None)
        logits = found.logits.flatten(0, 1)
        logits = F.pad(logits, (0, VOCAB_SIZE - N_VALUES), value=torch.finfo(logits.dtype).min)
        if capture is None:
            return Prediction(logits[:, window])
        assert found.attention is not None
        mean = found.attention[:, :, sorted(capture.layers)].mean((2, 3)).flatten(0, 1)
        return Prediction(logits[:, window], mean[:, capture.queries, capture.keys].float())
