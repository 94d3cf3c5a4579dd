"""The references' own forward pass is the network's: logits, attention, and passes over a part of the columns."""

import pytest
import torch

from dapd.models import Capture, KVCache, KVPool
from reference.models import IDS, PROMPTS, build
from reference.network import Sequence, predictions

TOKENS = [*PROMPTS[0], *[IDS.mask_id] * 6, 12, *[IDS.mask_id] * 5]
ALL = slice(0, len(TOKENS))


def stacked(rows: dict[int, torch.Tensor]) -> torch.Tensor:
    return torch.stack(list(rows.values()))


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-10)])
def test_full_pass_gives_the_networks_logits(family, dtype, tolerance):
    model = build(family, seed=3, dtype=dtype)
    expected = model(torch.tensor([TOKENS]), ALL, ALL).logits[0]
    torch.testing.assert_close(stacked(predictions(Sequence(model), TOKENS)), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_attention_is_what_the_network_captures(family):
    model = build(family, seed=3)
    sequence = Sequence(model)
    sequence.run(TOKENS)
    for layers in ({2}, {0, 1}):
        captured = model(torch.tensor([TOKENS]), ALL, ALL, capture=Capture(frozenset(layers))).attention[0]
        mean = sum(sequence.attention[layer] for layer in layers) / len(layers)
        torch.testing.assert_close(captured.double(), mean, rtol=0, atol=1e-6)
        torch.testing.assert_close(mean.sum(-1), torch.ones(len(TOKENS), dtype=torch.float64))


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("fed", [range(8, len(TOKENS)), range(8, 12)], ids=["prefix", "dual"])
def test_partial_passes_keep_the_other_columns(family, fed):
    model, cache = build(family, seed=3), KVCache(KVPool(1, len(TOKENS)))
    sequence, span = Sequence(model), slice(fed.start, fed.stop)
    first = stacked(predictions(sequence, TOKENS))
    model(torch.tensor([TOKENS]), ALL, ALL, cache=cache)
    later = list(TOKENS)
    later[9], later[2] = 33, 14  # column 2 is not fed again: its change must stay unseen
    for _ in range(2):
        ours = model(torch.tensor([later]), span, span, cache=cache).logits[0]
        theirs = stacked(predictions(sequence, later, fed))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
        assert not torch.allclose(theirs, first[span], atol=1e-3)
        later[10] = 5


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_confidences_of_these_models_spread(family):
    confidences, tokens = [], set()
    for seed in range(4):
        rows = stacked(predictions(Sequence(build(family, seed)), [*PROMPTS[0], *[IDS.mask_id] * 16]))[5:]
        confidences += torch.softmax(rows, -1).amax(-1).tolist()
        tokens |= set(rows.argmax(-1).tolist())
    assert min(confidences) < 0.5
    assert sum(0.5 <= c < 0.9 for c in confidences) >= 8
    assert sum(c >= 0.9 for c in confidences) >= 8
    assert len(tokens) >= 8
