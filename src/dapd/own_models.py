"""Models as the command line names them: those of `dapd.load`, and the user's own (`dapd.io.own`)."""

from __future__ import annotations

from typing import Any

import torch

from dapd.errors import DapdError
from dapd.generation import DiffusionLM, load
from dapd.io import own
from dapd.models import MaskedLM, Profile
from dapd.models.masked_lm import as_masked_lm
from dapd.models.tokenizer import HubTokenizer, Tokenizer
from dapd.settings import split_spec

FORM = "a dapd.DiffusionLM, a network (dapd.MaskedLM), or a pair of network and tokenizer (docs/reference.md)"


def is_own_model(source: str) -> bool:
    """Whether a model's name is that of a function of the user's own."""
    return not source.startswith("random:") and own.is_own(split_spec(source)[0])


def load_named(
    source: str,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    fp8: bool = False,
    tensor_parallel: bool = False,
) -> DiffusionLM:
    """A model by a name that the user typed: as in `load`, or `my_module:make`, `my_file.py:make:field=value,...`.

    A function of the user's own gets the device and the dtype that were asked for if it has parameters of these names.
    """
    if not is_own_model(source):
        return load(source, device=device, dtype=dtype, fp8=fp8, tensor_parallel=tensor_parallel)
    name, texts = split_spec(source)
    if fp8 or tensor_parallel:
        what = "fp8" if fp8 else "tensor parallelism"
        raise DapdError(f"{what} is for LLaDA and Dream checkpoints; {name} makes its model itself")
    if dtype is not None and "dtype" not in own.parameters(name):
        raise DapdError(f"{name} has no parameter `dtype`, so that --dtype would change nothing; leave it out")
    asked = {key: value for key, value in (("device", device), ("dtype", dtype)) if value is not None}
    try:
        made = own.make(name, texts, asked)
    except own.NoModuleError:
        if source.startswith("lab:"):  # lab:any_text has the form of a name in a module
            return load(source)
        raise
    model = as_model(source, made)
    if device is not None and model.network.device.type != torch.device(device).type:
        raise DapdError(
            f"the model of {name} is on {model.network.device}, not on {device}; give {name} a parameter `device`, or "
            f"ask for --device {model.network.device.type}"
        )
    return model


def as_model(name: str, thing: Any) -> DiffusionLM:
    """The model that a function of the user's own returned; if it is not a model, the error says what is missing."""
    if isinstance(thing, DiffusionLM):
        return thing
    network, tokenizer = thing if isinstance(thing, tuple) and len(thing) == 2 else (thing, None)
    if _is_of_transformers(network):
        if not hasattr(tokenizer, "convert_ids_to_tokens"):
            raise DapdError(f"{name} gave a {type(network).__name__} alone; return it and its tokenizer, as a pair")
        return DiffusionLM(*as_masked_lm(network, tokenizer, name), name=name)
    missing = _missing(MaskedLM, network)
    if missing or not callable(network):
        lacks = f" without {', '.join(missing)}" if missing else " that cannot be called"
        raise DapdError(f"{name} gave a {type(network).__name__}{lacks}; a model is {FORM}")
    if not isinstance(network.profile, Profile):
        raise DapdError(f"{name} gave a network whose profile is {network.profile!r}; it must be a dapd.Profile")
    network.profile.check(network.vocab_size)
    return DiffusionLM(network, _as_tokenizer(name, tokenizer, network.profile), name=name)


def _is_of_transformers(network: object) -> bool:
    """Whether it is a masked language model of `transformers`; to find out, `transformers` need not be imported."""
    names = [kind.__name__ for kind in type(network).__mro__]
    return "PreTrainedModel" in names and any(name.endswith("ForMaskedLM") for name in names)


def _as_tokenizer(name: str, tokenizer: Any, profile: Profile) -> Tokenizer | None:
    """The tokenizer as the engine takes it: one of `transformers` is wrapped, None stays None."""
    if tokenizer is None:
        return None
    if hasattr(tokenizer, "convert_ids_to_tokens"):
        return HubTokenizer(tokenizer, profile)
    missing = _missing(Tokenizer, tokenizer)
    if missing:
        raise DapdError(f"{name} gave the tokenizer {type(tokenizer).__name__} without {', '.join(missing)}")
    return tokenizer  # type: ignore[no-any-return]


def _missing(protocol: type, thing: object) -> list[str]:
    """The attributes of a protocol that a thing does not have."""
    return [name for name in vars(protocol) if not name.startswith("_") and not hasattr(thing, name)]
