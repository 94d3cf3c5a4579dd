"""A stack of toy networks as one model that the decoding loop can use."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor

from dapd.canvas import Canvas
from dapd.errors import DapdError
from dapd.models.base import Capture, Prediction, Profile
from dapd.models.cache import KVCache
from dapd.models.columns import Span, take
from dapd.mrf.data import LENGTH, MASK_ID, N_VALUES
from dapd.mrf.network import StackedRADD

END_ID = MASK_ID + 1
"""Id of EOS and padding, which the decoding loop requires and the toy lacks: never predicted, never on a canvas."""
VOCAB_SIZE = END_ID + 1
FIRST_NAME = VOCAB_SIZE
"""Token that names the first network; the next ids name the others. Names are never predicted, so the vocabulary ends
before them."""


class ToyLM:
    """A stack of toy networks as one model. Every row begins with a token that names its network, because rows join and
    leave a batch and their place in it says nothing about them."""

    lookback = 0
    graphable = False
    max_length = LENGTH + 1
    vocab_size = VOCAB_SIZE

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

    def blank(self, n_rows: int) -> list[Canvas]:
        """Canvases of masks for every network, `n_rows` each."""
        names = [FIRST_NAME + number for number in range(self.network.n_models) for _ in range(n_rows)]
        return [Canvas.blank([name], LENGTH, mask_id=MASK_ID) for name in names]

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
        if cache is not None or valid is not None:
            raise DapdError("the toy network decodes whole sequences of nine tokens: no reuse and no padding")
        owner = tokens[:, 0] - FIRST_NAME
        belongs = owner[:, None] == torch.arange(self.network.n_models, device=tokens.device)
        number = belongs.cumsum(0).gather(1, owner[:, None])[:, 0] - 1
        # All networks compute the same number of rows; where one has fewer, rows of zeros fill its part.
        stacked = tokens.new_zeros((self.network.n_models, int(belongs.sum(0).max()), LENGTH))
        stacked[owner, number] = tokens[:, 1:]
        answer = self.network(stacked, attention=capture is not None)
        logits = answer.logits[owner, number]
        missing = VOCAB_SIZE - N_VALUES
        logits = F.pad(logits, (0, missing, 1, 0), value=torch.finfo(logits.dtype).min)
        if capture is None:
            return Prediction(take(logits, window))
        assert answer.attention is not None
        mean = answer.attention[:, :, sorted(capture.layers)].mean((2, 3))[owner, number]
        rows = take(F.pad(mean.float(), (1, 0, 1, 0)), window)
        return Prediction(take(logits, window), rows if capture.keys == "canvas" else take(rows, window, dim=2))
