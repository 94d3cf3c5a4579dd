import pytest
import torch

from dapd.decoding import Options, Reuse, decode
from dapd.decoding.sampling import Sampling
from dapd.errors import DapdError
from dapd.models.base import Capture
from dapd.mrf.adapter import END_ID, FIRST_NAME, ToyLM
from dapd.mrf.data import LENGTH, MASK_ID
from dapd.strategies import Dapd, EntropyBound, Klass, TopK

WHOLE = slice(0, LENGTH + 1)
STRATEGIES = [TopK(2, order="random"), EntropyBound(1.0), Klass(), Dapd(0.9, 0.95, shortcut="direct", layers=(-2, -1))]


def decoded(model, canvases, strategy, seed):
    options = Options(sampling=Sampling(temperature=1.0), seed=seed)
    done = {step.row: step.canvas.tokens[1:] for step in decode(model, canvases, strategy, options)}
    return torch.stack([done[row] for row in range(len(canvases))])


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
def test_rows_are_the_same_alone_and_in_a_batch(stack, strategy):
    model = ToyLM(stack.pick(slice(0, 1)))
    together = decoded(model, model.blank(5), strategy, seed=20)
    for row in range(5):
        assert torch.equal(decoded(model, model.blank(1), strategy, seed=20 + row)[0], together[row])


def test_every_row_is_decoded_by_the_model_that_it_names(stack):
    """Rows leave at different times, so the models have unequal numbers of them on the way."""
    strategy = Dapd(0.9, 0.95, shortcut="direct", layers=(-2, -1))
    together = decoded(ToyLM(stack), ToyLM(stack).blank(4), strategy, seed=0)
    for m in range(3):
        alone = ToyLM(stack.pick(slice(m, m + 1)))
        assert torch.equal(decoded(alone, alone.blank(4), strategy, seed=4 * m), together[4 * m : 4 * m + 4])


def test_only_values_are_ever_predicted(stack):
    tokens = decoded(ToyLM(stack), ToyLM(stack).blank(50), TopK(9), seed=0)
    assert int(tokens.max()) < MASK_ID < END_ID


def test_capture_is_the_mean_over_the_layers_and_heads_asked_for(stack):
    model = ToyLM(stack)
    tokens = torch.full((6, LENGTH), MASK_ID)
    tokens[:, 3] = torch.arange(6) % 3
    whole = stack(tokens.view(3, 2, LENGTH), attention=True).attention
    rows = torch.cat((FIRST_NAME + torch.arange(3).repeat_interleave(2)[:, None], tokens), 1)
    capture = Capture(frozenset({1, 3}))
    expected = whole[:, :, [1, 3]].mean((2, 3)).reshape(6, LENGTH, LENGTH)[:, 2:7, 2:7]
    torch.testing.assert_close(model(rows, WHOLE, slice(3, 8), capture=capture).attention, expected)
    mixed = torch.tensor([4, 0, 3, 1, 5, 2])
    torch.testing.assert_close(model(rows[mixed], WHOLE, slice(3, 8), capture=capture).attention, expected[mixed])
    assert model(rows, WHOLE, WHOLE).attention is None


def test_a_cache_is_refused(stack):
    model = ToyLM(stack)
    with pytest.raises(DapdError, match="no reuse"):
        list(decode(model, model.blank(1), TopK(), Options(reuse=Reuse.PREFIX)))
