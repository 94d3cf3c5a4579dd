"""The Python interface: it loads a model by its name, and turns prompts into completions."""

from dapd.generation.completion import Completion
from dapd.generation.model import DEFAULT_MODEL, DEFAULT_NEW_TOKENS, AnyStrategy, DiffusionLM, load, random
from dapd.generation.prompts import Prompt
from dapd.generation.streamer import Streamer

__all__ = [
    "DEFAULT_MODEL",
    "DEFAULT_NEW_TOKENS",
    "AnyStrategy",
    "Completion",
    "DiffusionLM",
    "Prompt",
    "Streamer",
    "load",
    "random",
]
