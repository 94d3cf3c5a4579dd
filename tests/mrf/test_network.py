import math

import pytest
import torch
import torch.nn.functional as F

from dapd.errors import DapdError
from dapd.mrf.data import LENGTH, MASK_ID, draw_sequences
from dapd.mrf.network import Positions, Shape, StackedRADD, initialise, mix_short, transformer_block


def tokens_for(n_models: int, batch: int = 5) -> torch.Tensor:
    tokens = torch.stack([draw_sequences(batch, seed) for seed in range(n_models)])
    generator = torch.Generator().manual_seed(1)
    return torch.where(torch.rand(tokens.shape, generator=generator) < 0.5, MASK_ID, tokens)


def plain_forward(weights: dict[str, torch.Tensor], tokens: torch.Tensor, n_heads: int):
    """One model, one sequence at a time, each head and query written out."""
    logits, attentions = [], []
    n_layers, width = weights["block.norm1"].shape
    head = width // n_heads
    for row in tokens:
        x = weights["embedding"][row]
        layers = []
        for layer in range(n_layers):
            w = {k.removeprefix("block."): v[layer] for k, v in weights.items() if k.startswith("block.")}
            h = F.layer_norm(x, (width,)) * w["norm1"] + w["norm1_bias"]
            q, k, v = (h @ w["qkv"]).chunk(3, -1)
            outs, heads = [], []
            for a in range(n_heads):
                part = slice(a * head, (a + 1) * head)
                qa, ka = turned(q[:, part]), turned(k[:, part])
                p = torch.stack([F.softmax((ka @ qa[i]) / math.sqrt(head), -1) for i in range(LENGTH)])
                heads.append(p)
                outs.append(p @ v[:, part])
            layers.append(torch.stack(heads))
            x = x + torch.cat(outs, -1) @ w["out"]
            h = F.layer_norm(x, (width,)) * w["norm2"] + w["norm2_bias"]
            x = x + F.gelu(h @ w["up"] + w["up_bias"], approximate="tanh") @ w["down"] + w["down_bias"]
        x = F.layer_norm(x, (width,)) * weights["norm"] + weights["norm_bias"]
        logits.append(x @ weights["head"] + weights["head_bias"])
        attentions.append(torch.stack(layers))
    return torch.stack(logits), torch.stack(attentions)


def turned(x: torch.Tensor) -> torch.Tensor:
    """Rotary positions, one pair of channels at a time."""
    out, half = x.clone(), x.shape[1] // 2
    for n in range(x.shape[0]):
        for c in range(half):
            angle = n / 10_000 ** (c / half)
            a, b = x[n, c], x[n, c + half]
            out[n, c] = a * math.cos(angle) - b * math.sin(angle)
            out[n, c + half] = b * math.cos(angle) + a * math.sin(angle)
    return out


def test_the_stack_is_the_plain_network_model_by_model(stack):
    tokens = tokens_for(3)
    found = stack(tokens, attention=True)
    for m in range(3):
        weights = {name: w[m] for name, w in stack.state_dict().items()}
        logits, attention = plain_forward(weights, tokens[m], stack.shape.n_heads)
        torch.testing.assert_close(found.logits[m], logits, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(found.attention[m], attention, atol=1e-5, rtol=1e-4)


def test_a_model_does_not_depend_on_its_stack(stack):
    tokens = tokens_for(3)
    alone = stack.pick(slice(1, 2))
    torch.testing.assert_close(stack(tokens).logits[1:2], alone(tokens[1:2]).logits)
    other = StackedRADD(1, stack.shape)
    initialise(other, [6], [0.0])
    assert torch.equal(other.block.qkv[0], stack.block.qkv[1])


def test_attention_rows_sum_to_one(stack):
    attention = stack(tokens_for(3), attention=True).attention
    assert attention.shape == (3, 5, 4, 2, LENGTH, LENGTH)
    torch.testing.assert_close(attention.sum(-1), torch.ones(attention.shape[:-1]))


def test_radd_starts_with_norm_biases_of_one_and_a_uniform_prediction():
    network = StackedRADD(2, Shape(n_layers=2, width=16, n_heads=2))
    initialise(network, [0, 0], [1.0, 0.0])
    assert (network.block.norm1_bias[0] == 1).all()
    assert (network.norm_bias[1] == 0).all()
    assert (network(tokens_for(2)).logits == 0).all()
    assert float(network.block.down.detach().abs().max()) <= 1 / math.sqrt(64)


def test_gates_start_closed():
    network = StackedRADD(1, Shape(n_layers=1, width=16, n_heads=2, gated=True))
    initialise(network, [0], [1.0])
    x = torch.randn(1, LENGTH, 16)
    (layer,) = network.block.layers()
    assert torch.equal(transformer_block(x, layer, 2, network.cos, network.sin, None), x)


def test_dropout_is_each_models_own(stack):
    tokens = tokens_for(3)
    torch.manual_seed(0)
    dropped = stack(tokens, dropout=torch.tensor([0.0, 0.5, 0.0])).logits
    clean = stack(tokens).logits
    torch.testing.assert_close(dropped[[0, 2]], clean[[0, 2]])
    assert not torch.allclose(dropped[1], clean[1])


def test_impossible_shapes_are_refused(stack):
    with pytest.raises(DapdError, match="multiple of twice"):
        Shape(width=30, n_heads=4)
    with pytest.raises(DapdError, match="this stack takes"):
        stack(tokens_for(2))


def test_rotary_positions_alone_cannot_tell_masked_positions_apart(stack):
    """All values are equal, so whatever attention does, every position stays what it was: RADD's network at step 1."""
    blank = torch.full((3, 1, LENGTH), MASK_ID)
    logits = stack(blank).logits
    torch.testing.assert_close(logits, logits[:, :, :1].expand_as(logits), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("positions", [Positions.LEARNED, Positions.SINCOS, Positions.ROTARY_LEARNED])
def test_absolute_positions_tell_masked_positions_apart(positions):
    network = StackedRADD(2, Shape(n_layers=2, width=16, n_heads=2, positions=positions))
    initialise(network, [0, 1], [1.0, 0.0])
    with torch.no_grad():
        network.head.normal_(generator=torch.Generator().manual_seed(0))
        logits = network(torch.full((2, 1, LENGTH), MASK_ID)).logits
    assert not torch.allclose(logits[:, :, 0], logits[:, :, 1])
    assert torch.equal(logits, network(torch.full((2, 3, LENGTH), MASK_ID)).logits[:, :1])


def test_attention_for_a_compiler_is_the_librarys():
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(5, 2, 9, 8, generator=generator, requires_grad=True) for _ in range(3))
    ours = mix_short(q, k, v)
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(ours, theirs)
    weight = torch.randn(ours.shape, generator=generator)
    for a, b in zip(*(torch.autograd.grad((x * weight).sum(), (q, k, v)) for x in (ours, theirs)), strict=True):
        torch.testing.assert_close(a, b)
