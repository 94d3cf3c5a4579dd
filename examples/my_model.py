"""A model of one's own: it predicts letters from the letters near them, by what it counted in a text.

dapd generate "the king" -m examples/my_model.py:letters -n 40 -s original
dapd generate --template "the [MASK*4] and [MASK*3] queen" -m examples/my_model.py:letters:reach=5 --live --pace 0.2
dapd serve -m examples/my_model.py:letters

A function that gives a network, or a network with its tokenizer, is all that `-m` needs. Its arguments are set after a
second colon; one called `device` or `dtype` gets what `--device` or `--dtype` says.
"""

from __future__ import annotations

import torch
from torch import Tensor

import dapd

TEXT = """the king and the queen went to the sea and the sea was cold and the king said to the queen that the wind was
warm on the hill and the queen said to the king that they went to the hill the last time they went to the sea and then
the king and the queen went home and there was tea on the table and there was a cat on the chair and the cat was warm"""


class Letters(torch.nn.Module):
    """Predicts a letter from the letters near it, each independently of the others: naive Bayes."""

    profile = dapd.Profile(mask_id=256, eos_id=257, pad_id=257)
    vocab_size = 258
    n_layers = 1
    """Layers with attention. There is none here: nearness stands in for it, as near letters say more of each other."""
    max_length = 2048
    lookback = 0
    graphable = False
    often: Tensor
    after: Tensor

    def __init__(self, text: str, reach: int) -> None:
        super().__init__()
        letters = torch.tensor(list(text.encode()))
        often = (letters.bincount(minlength=self.vocab_size) + 1e-3).log()
        self.register_buffer("often", often.log_softmax(0))
        self.register_buffer("after", torch.stack([self.count(letters, step) for step in range(1, reach + 1)]))

    def count(self, letters: Tensor, step: int) -> Tensor:
        """How much likelier each letter is `step` places after each other letter than elsewhere."""
        pairs = torch.full((self.vocab_size, self.vocab_size), 1e-2)
        pairs.index_put_((letters[:-step], letters[step:]), torch.ones(len(letters) - step), accumulate=True)
        return pairs.log().log_softmax(-1) - self.often

    @property
    def device(self) -> torch.device:
        return self.after.device

    def __call__(
        self,
        tokens: Tensor,
        span: dapd.Span,
        window: dapd.Span,
        *,
        valid: Tensor | None = None,
        cache: dapd.KVCache | None = None,
        capture: dapd.Capture | None = None,
    ) -> dapd.Prediction:
        """The logits of the window's columns. Where a decoder asks for attention, it gets the nearness of columns."""
        length = tokens.shape[1]
        every = torch.arange(length, device=tokens.device)
        columns = (every[window] if isinstance(window, slice) else window).expand(len(tokens), -1)
        logits = self.often.expand(*columns.shape, -1).clone()
        for step, after in enumerate(self.after, start=1):
            for other, said in ((columns - step, after), (columns + step, after.T)):
                token = tokens.gather(1, other.clamp(0, length - 1))
                heard = (other >= 0) & (other < length) & (token != self.profile.mask_id)
                logits += said[token] * heard[..., None]
        if capture is None:
            return dapd.Prediction(logits)
        keys = columns if capture.keys == "window" else every.expand(len(tokens), -1)
        return dapd.Prediction(logits, torch.exp2(-(columns[:, :, None] - keys[:, None, :]).abs().float()))


def letters(reach: int = 3, device: str = "cpu") -> tuple[dapd.MaskedLM, dapd.Tokenizer]:
    """The model and its tokenizer; `reach` is how many letters on each side it looks at."""
    network = Letters(" ".join(TEXT.split()), reach).to(device)
    return network, dapd.ByteTokenizer(network.profile)
