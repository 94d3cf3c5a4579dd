import pytest
import torch

from dapd.mrf import exact
from dapd.mrf.data import LENGTH, MASK_ID, all_sequences, valid
from dapd.mrf.evaluate import Budget, evaluate
from dapd.mrf.paths import sample_sequences
from dapd.mrf.tables import convergence
from dapd.mrf.train import LOSS_FLOOR


def perfect() -> torch.Tensor:
    """The data's own conditionals in every context, as the log-probabilities of one model."""
    known = exact.contexts()
    completions = torch.cat([known.completions, torch.zeros(1, dtype=torch.long)])
    shares = completions[known.next].double()
    return (shares / shares.sum(-1, keepdim=True)).nan_to_num(1 / 3).clamp_min(1e-300).log()[None]


def test_there_is_a_context_for_each_way_to_mask_a_sequence():
    known = exact.contexts()
    assert known.tokens[0].tolist() == [MASK_ID] * LENGTH
    assert int(known.completions[0]) == 243
    assert torch.equal(known.tokens[-243:].sort(0).values, all_sequences().sort(0).values)
    assert int((known.n_masked == 1).sum()) == 9 * 243


def test_the_datas_own_conditionals_are_always_valid_and_reach_the_floor():
    assert exact.chance_of_validity(perfect()).tolist() == pytest.approx([1.0])
    assert exact.expected_loss(perfect()).tolist() == pytest.approx([LOSS_FLOOR])


def test_guesses_are_valid_once_in_81_times():
    guesses = torch.full((1, len(exact.contexts().tokens), LENGTH, 3), 1 / 3).double().log()
    assert exact.chance_of_validity(guesses).tolist() == pytest.approx([3**-4])


def test_samples_agree(stack):
    """Untrained models, of which one is sharpened so that its validity is not that of guesses."""
    network = stack.pick(slice(0, 1))
    network.head.mul_(4)
    share = float(valid(sample_sequences(network, 6000, 0)).float().mean())
    found = evaluate(network, Budget(n_paths=4, exact=True))
    assert found.valid_by_model == pytest.approx([share], abs=4 * (share / 6000) ** 0.5)
    assert found.loss_by_model is not None
    assert found.loss_by_model[0] > LOSS_FLOOR
    assert "exact" in convergence(found)
