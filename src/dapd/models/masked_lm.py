"""Any Hugging Face `AutoModelForMaskedLM` (BERT, RoBERTa, ModernBERT, ESM-2, ...) as a model for the engine."""

from __future__ import annotations

import inspect
import re
from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from dapd.errors import DapdError, first_line, missing_extra
from dapd.models.base import Capture, Prediction, Profile
from dapd.models.cache import KVCache
from dapd.models.checkpoint import (
    architectures_of,
    check_layers,
    check_plain,
    check_types,
    read_json,
    some,
    stored_tensors,
)
from dapd.models.columns import Span, take
from dapd.models.tokenizer import HubTokenizer, open_auto_tokenizer, quiet

TRIAL = 16
"""Tokens of the trial that shows whether a model sees padding, behind as much padding."""


class HubMaskedLM:
    """A masked language model of `transformers`. Attention is captured from its eager implementation.

    Layers with local attention give zero beyond their reach, which says nothing about dependence. They are left out of
    `n_layers`: layer indices and shares of layers count only the layers with full attention.
    """

    lookback = 0
    graphable = False

    def __init__(self, inner: Any, profile: Profile) -> None:
        self.inner = inner.eval().requires_grad_(False)
        self.profile = profile
        config = inner.config
        kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
        self.full_layers = [i for i, kind in enumerate(kinds) if kind == "full_attention"]
        if not self.full_layers:
            raise DapdError(f"{type(inner).__name__} has no layer with full attention")
        profile.check(config.vocab_size)
        self.takes_positions = "position_ids" in inspect.signature(inner.forward).parameters
        self.padding_id, self.first_position = _counting_of_positions(inner)

    @property
    def n_layers(self) -> int:
        return len(self.full_layers)

    @property
    def max_length(self) -> int:
        # A table of position embeddings that starts after the padding id has room for that many fewer positions.
        shift = 0 if self.padding_id is None else self.padding_id + 1
        return int(getattr(self.inner.config, "max_position_embeddings", 512)) - shift

    @property
    def vocab_size(self) -> int:
        return int(self.inner.config.vocab_size)

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
        window: Span,
        *,
        valid: Bool[Tensor, "batch length"] | None = None,
        cache: KVCache | None = None,
        capture: Capture | None = None,
    ) -> Prediction:
        """A pass over the whole canvas, whatever `span` says: there is no cache from which the rest could come."""
        if cache is not None:
            raise DapdError("this model keeps no keys and values: reuse must be none")
        here = torch.ones_like(tokens, dtype=torch.bool) if valid is None else valid
        if valid is not None and self.sees_padding:
            logits, attention = self._row_by_row(tokens, here, capture)
        else:
            logits, attention = self._pass(tokens, here, capture)
        if attention is not None and capture is not None:
            attention = take(attention, window)
            if capture.keys == "window":
                attention = take(attention, window, dim=2)
        return Prediction(take(logits, window), attention)

    @cached_property
    def sees_padding(self) -> bool:
        """Whether padding changes predictions though the model is told to ignore it.

        It does so in convolutions, in Fourier transforms, and in attention by blocks, whose borders move with it. This
        is tried out once, on a few tokens, with a copy in float32: rounding in half precision hides what is looked
        for, and a pass may change a model (BigBird's gives up its blocks on a short text).
        """
        if getattr(self.inner.config, "attention_type", None) == "block_sparse":
            return True
        n = max(1, min(TRIAL, self.max_length // 2))
        tokens = torch.randint(self.vocab_size, (1, n), generator=torch.Generator().manual_seed(0)).to(self.device)
        padded = torch.cat((torch.full_like(tokens, self.profile.pad_id), tokens), 1)
        valid = torch.arange(2 * n, device=self.device)[None] >= n
        try:
            copy = HubMaskedLM(deepcopy(self.inner).float(), self.profile)
            alone, _ = copy._pass(tokens, torch.ones_like(tokens, dtype=torch.bool), None)
            behind, _ = copy._pass(padded, valid, None)
        except (RuntimeError, ValueError, IndexError):  # a model for certain lengths alone, or no memory for two
            return True
        return not bool((alone - behind[:, n:]).abs().max() <= 1e-3 * alone.std())

    def _row_by_row(
        self, tokens: Int[Tensor, "b l"], here: Bool[Tensor, "b l"], capture: Capture | None
    ) -> tuple[Float[Tensor, "b l vocab"], Float[Tensor, "b l l"] | None]:
        """A pass in which every row is computed alone; what belongs to padding is zero."""
        logits, attentions = [], []
        for row, valid in zip(tokens, here, strict=True):
            one, attention = self._pass(row[None, valid], valid[None, valid], capture)
            before = len(row) - one.shape[1]
            logits.append(pad(one[0], (0, 0, before, 0)))
            if attention is not None:
                attentions.append(pad(attention[0], (before, 0, before, 0)))
        return torch.stack(logits), torch.stack(attentions) if attentions else None

    def _pass(
        self, tokens: Int[Tensor, "b l"], here: Bool[Tensor, "b l"], capture: Capture | None
    ) -> tuple[Float[Tensor, "b l vocab"], Float[Tensor, "b l l"] | None]:
        """The logits of every column and, where it is asked for, the attention between all columns."""
        extra = {"position_ids": self._positions(tokens, here)} if self.takes_positions else {}
        try:
            out = self.inner(
                input_ids=tokens,
                attention_mask=here.long(),
                output_attentions=capture is not None,
                return_dict=True,
                **extra,
            )
        except IndexError:
            self._refuse_foreign_ids(tokens)
            raise
        if capture is None:
            return out.logits, None
        shown = getattr(out, "attentions", None) or ()
        length = tokens.shape[1]
        if any(layer.shape[-2:] != (length, length) for layer in shown) or not shown:
            raise DapdError(
                f"{type(self.inner).__name__} does not show the attention between all positions; take a strategy that "
                "reads none, such as fast-dllm"
            )
        layers = [shown[self.full_layers[i]].float().mean(1) for i in sorted(capture.layers)]
        return out.logits, torch.stack(layers).mean(0)

    def _positions(self, tokens: Int[Tensor, "b l"], here: Bool[Tensor, "b l"]) -> Int[Tensor, "b l"]:
        """The position ids that each row would have alone, whatever padding stands before it in a batch.

        Some families count from the padding id + 1 and skip padding, which they recognise by the id in their config.
        That is done here, because a batch may be padded with another id.
        """
        counted = here if self.padding_id is None else here & (tokens != self.padding_id)
        return (counted.cumsum(-1) * counted + self.first_position - 1).clamp_min(0)

    def _refuse_foreign_ids(self, tokens: Int[Tensor, "b l"]) -> None:
        foreign = tokens[(tokens < 0) | (tokens >= self.vocab_size)]
        if len(foreign):
            raise DapdError(f"token id {int(foreign[0])} is outside of the vocabulary (0..{self.vocab_size - 1})")


def _counting_of_positions(inner: Any) -> tuple[int | None, int]:
    """The padding id after which a model counts positions, and the first position.

    The padding id is None where positions do not depend on it; they then begin where the model's own list of them does.
    """
    tables = [module for module in inner.modules() if hasattr(module, "position_embeddings")]
    paddings = [int(table.padding_idx) for table in tables if getattr(table, "padding_idx", None) is not None]
    if paddings:
        return paddings[0], paddings[0] + 1
    lists = [table.position_ids for table in tables if getattr(table, "position_ids", None) is not None]
    return None, int(lists[0].min()) if lists else 0


def load_masked_lm(
    folder: Path, *, device: torch.device | str, dtype: torch.dtype | None, mask_id: int | None
) -> tuple[HubMaskedLM, HubTokenizer]:
    """The model of a folder and its tokenizer, through `transformers`; no code of the checkpoint is run, ever."""
    try:
        import transformers  # noqa: F401  (asked for here, so that its absence has one message)
    except ImportError:
        raise missing_extra("transformers", "hub", f"loading {folder}") from None
    _check_files(folder)
    tokenizer = open_auto_tokenizer(folder)
    inner = _open_model(folder, dtype or torch.float32).to(device)
    return as_masked_lm(inner, tokenizer, str(folder), mask_id)


def as_masked_lm(inner: Any, tokenizer: Any, name: str, mask_id: int | None = None) -> tuple[HubMaskedLM, HubTokenizer]:
    """A model and a tokenizer of `transformers` as the engine takes them; `name` is what errors call them.

    Special tokens other than the end of the text are never predicted: they would be committed, and then be missing from
    the text.
    """
    mask = tokenizer.mask_token_id if mask_id is None else mask_id
    if mask is None:
        raise DapdError(f"{name}: the tokenizer has no mask token; pass mask_id=... (it is never guessed)")
    end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    if end is None or tokenizer.pad_token_id is None:
        raise DapdError(f"{name}: the tokenizer names no end or padding token")
    largest = max(tokenizer.get_vocab().values())
    if largest >= inner.config.vocab_size:
        raise DapdError(
            f"{name}: the tokenizer has ids up to {largest}, the model only {inner.config.vocab_size} tokens: they "
            "do not belong together"
        )
    inner.set_attn_implementation("eager")  # the only one that gives attention
    profile = Profile(mask_id=mask, eos_id=end, pad_id=tokenizer.pad_token_id)
    reader = HubTokenizer(tokenizer, profile)
    return HubMaskedLM(inner, replace(profile, special=reader.special_ids)), reader


def _check_files(folder: Path) -> None:
    """Refuse what `transformers` would accept: weights in other files or dtypes, an endless network, an adapter."""
    config = read_json(folder / "config.json")
    check_plain(folder, config)
    stored = stored_tensors(folder)
    layers = config.get("num_hidden_layers", 1)
    if not isinstance(layers, int):
        raise DapdError(f"{folder}: num_hidden_layers is {layers!r}; it must be a whole number")
    check_layers(layers, stored, folder)
    # Buffers of position ids hold whole numbers and are not weights.
    check_types({name: one for name, one in stored.items() if not name.endswith("_ids")})


def _open_model(folder: Path, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForMaskedLM

    try:
        with quiet():
            inner, report = AutoModelForMaskedLM.from_pretrained(
                str(folder),
                use_safetensors=True,
                dtype=dtype,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
            )
    except Exception as error:  # transformers has no common class for what can be wrong with a folder
        raise DapdError(f"{folder} cannot be loaded as a masked language model: {first_line(error)}") from None
    kind = type(inner).__name__
    named = architectures_of(inner.config.to_dict(), folder / "config.json")
    if kind not in named:
        raise DapdError(
            f"{folder}: config.json says {', '.join(named)}, and transformers makes a {kind} of it, which may compute "
            f"something else with the same weights; if they are one and the same, write {kind} under architectures"
        )
    # A pooler or another head may be there unused, and so may buffers. What layers are made of may not.
    layers = re.compile(rf"{inner.base_model_prefix}\..*\.\d+\..*\.(weight|bias)")
    left_out = sorted(name for name in report["unexpected_keys"] if layers.fullmatch(name))
    if left_out:
        raise DapdError(
            f"{folder} has tensors in its layers for which the {kind} of transformers has no place, so that it would "
            f"compute something else: {some(left_out)}"
        )
    missing = sorted(str(name) for name in report["missing_keys"])
    if missing:
        raise DapdError(
            f"{folder} lacks tensors of {kind}, which would be random numbers: {some(missing)}; get a "
            "checkpoint that was saved with the head that predicts masked tokens"
        )
    return inner
