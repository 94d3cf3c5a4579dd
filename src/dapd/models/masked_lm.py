"""Any Hugging Face `AutoModelForMaskedLM` (BERT, RoBERTa, ModernBERT, ESM-2, ...) as a model for the engine."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dapd.errors import DapdError, missing_extra
from dapd.models.base import Capture, Prediction, Profile
from dapd.models.cache import KVCache
from dapd.models.columns import Span

COUNT_THEIR_OWN = {
    "roberta",
    "xlm-roberta",
    "xlm-roberta-xl",
    "camembert",
    "esm",
    "mpnet",
    "data2vec-text",
    "longformer",
}
"""Families that derive positions from where the padding is; the others number the columns and must be told."""


class HubMaskedLM:
    """Attention comes from eager attention. Layers that attend to a neighbourhood only are left out of `n_layers`.

    A local layer gives zero attention beyond its reach, which says nothing about dependence; layer indices and shares
    therefore count the layers with full attention alone.
    """

    lookback = 0

    def __init__(self, inner: Any, profile: Profile) -> None:
        self.inner = inner.eval().requires_grad_(False)
        self.profile = profile
        config = inner.config
        kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
        self.full_layers = [i for i, kind in enumerate(kinds) if kind == "full_attention"]
        if not self.full_layers:
            raise DapdError(f"{type(inner).__name__} has no layer with full attention")
        profile.check(config.vocab_size)
        parameters = inspect.signature(inner.forward).parameters
        self.takes_positions = "position_ids" in parameters and config.model_type not in COUNT_THEIR_OWN

    @property
    def n_layers(self) -> int:
        return len(self.full_layers)

    @property
    def max_length(self) -> int:
        # Tables of position embeddings that start behind the padding id hold that many fewer positions.
        config = self.inner.config
        shift = config.pad_token_id + 1 if config.model_type in COUNT_THEIR_OWN and config.pad_token_id else 0
        return int(getattr(config, "max_position_embeddings", 512)) - shift

    @property
    def device(self) -> torch.device:
        return next(iter(self.inner.parameters())).device  # type: ignore[no-any-return]

    def parameters(self) -> Any:
        return self.inner.parameters()

    def named_parameters(self) -> Any:
        return self.inner.named_parameters()

    def named_buffers(self) -> Any:
        return self.inner.named_buffers()

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
        """A pass over the whole canvas, whatever `span` says; there is no cache to keep the rest in."""
        if cache is not None:
            raise DapdError("this model keeps no keys and values: reuse must be none")
        seen = torch.ones_like(tokens, dtype=torch.bool) if valid is None else valid
        extra = {"position_ids": (seen.cumsum(-1) - 1).clamp_min(0)} if self.takes_positions else {}
        out = self.inner(
            input_ids=tokens,
            attention_mask=seen.long(),
            output_attentions=capture is not None,
            return_dict=True,
            **extra,
        )
        attention = None if capture is None else self._mean(out.attentions, capture)
        return Prediction(out.logits[:, window], attention)

    def _mean(self, attentions: tuple[Tensor, ...], capture: Capture) -> Float[Tensor, "batch n k"]:
        chosen = [attentions[self.full_layers[i]] for i in sorted(capture.layers)]
        return torch.stack([a[:, :, capture.queries, capture.keys].float().mean(1) for a in chosen]).mean(0)


def load_masked_lm(
    folder: Path, *, device: torch.device | str, dtype: torch.dtype | None, mask_id: int | None
) -> tuple[HubMaskedLM, Any]:
    """The model of a folder and its tokenizer, through `transformers`, without remote code."""
    try:
        from transformers import AutoModelForMaskedLM, AutoTokenizer
    except ImportError:
        raise missing_extra("transformers", "hub", f"loading {folder}") from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder))
        inner = AutoModelForMaskedLM.from_pretrained(
            str(folder), attn_implementation="eager", use_safetensors=True, dtype=dtype or torch.float32
        ).to(device)
    except (OSError, ValueError, KeyError) as error:
        raise DapdError(f"{folder} cannot be loaded as a masked language model: {str(error).splitlines()[0]}") from None
    mask = tokenizer.mask_token_id if mask_id is None else mask_id
    if mask is None:
        raise DapdError(f"{folder}: the tokenizer has no mask token; pass mask_id=... (it is never guessed)")
    end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    if end is None or tokenizer.pad_token_id is None:
        raise DapdError(f"{folder}: the tokenizer names no end or padding token")
    return HubMaskedLM(inner, Profile(mask_id=mask, eos_id=end, pad_id=tokenizer.pad_token_id)), tokenizer
