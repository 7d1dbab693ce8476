"""Parts of losses and statistics of a batch. `test_learner_twin` tests the losses of whole updates."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emtc_core.learner.targets import (
    UNAVAILABLE_Q,
    Incentive,
    gate_ratios,
    greedy,
    make_incentive_inputs,
    masked_mean,
    pack_stats,
    quantile_huber,
)
from tests.reference.dmix import huber_loss


def test_the_ratios_of_the_gate_count_sizes_and_closed_gates_of_real_transitions():
    # removed: |3 - 1.47| + |-2 - 0| = 3.53 of |3| + |-2| + |1| = 6; the last transition is padding; 0.5 is not closed.
    r_p = torch.tensor([[3.0, -2.0], [1.0, 50.0], [0.0, 0.0]])
    beta = torch.tensor([[0.49, 0.0], [1.0, 0.0], [0.5, 0.51]])
    mask = torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    ratios = gate_ratios(Incentive(r_p=r_p, gated=beta * r_p), beta, mask)
    assert {name: [float(x) for x in pair] for name, pair in ratios.items()} == {
        "gate/incentive_removed": [pytest.approx(3.53), 6.0],
        "gate/closed_fraction": [2.0, 5.0],
    }


FLOATS = st.floats(-3, 3, width=32)


@given(
    quantiles=st.lists(FLOATS, min_size=3, max_size=3),
    targets=st.lists(FLOATS | st.sampled_from([-1.0, 0.0, 1.0]), min_size=4, max_size=4),
)
def test_the_quantile_loss_and_its_gradient_equal_those_of_the_slow_reference(
    quantiles: list[float], targets: list[float]
):
    fractions = [0.25, 0.5, 0.9]
    fast, slow = (torch.tensor(quantiles, dtype=torch.float64, requires_grad=True) for _ in range(2))
    loss = quantile_huber(
        fast.view(1, 1, 3),
        torch.tensor([[fractions]], dtype=torch.float64),
        torch.tensor([[targets]], dtype=torch.float64),
    )
    expected = huber_loss(list(slow), fractions, targets)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-9, abs=1e-12)
    loss.sum().backward()
    expected.backward()
    torch.testing.assert_close(fast.grad, slow.grad, rtol=1e-9, atol=1e-12)


def test_a_mean_ignores_padding_and_is_zero_for_an_empty_batch():
    values = torch.tensor([[1.0, 3.0], [100.0, 5.0]])
    mask = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    assert masked_mean(values, mask).item() == 3.0
    assert masked_mean(values, torch.zeros(2, 2)).item() == 0.0
    assert masked_mean(values, torch.tensor([[1.0, 0.0], [0.0, 0.0]])).item() == 1.0


def test_the_greedy_action_is_the_best_that_is_available():
    q = torch.tensor([[1.0, 5.0, 3.0], [-4.0, -3.0, -2.0]], requires_grad=True)
    avail = torch.tensor([[True, False, True], [True, False, False]])
    values, actions = greedy(q, avail)
    assert (values.tolist(), actions.tolist()) == ([3.0, -4.0], [2, 0])
    assert not values.requires_grad
    assert greedy(q, torch.zeros(2, 3, dtype=torch.bool))[0].tolist() == [UNAVAILABLE_Q] * 2


def test_the_inputs_of_the_incentive_are_zero_at_a_miss():
    missing = np.array([[np.nan, 2.0]])
    inputs = make_incentive_inputs(missing, missing, np.array([[False, True]]))
    assert inputs.h_next.tolist() == inputs.rho_next.tolist() == [[0.0, 2.0]]
    assert inputs.hit.tolist() == [[False, True]]
    assert inputs.h_next.dtype == inputs.rho_next.dtype == torch.float32


def test_statistics_of_an_update_are_read_by_name_as_values_ratios_and_errors_of_episodes():
    values = {"train/loss": torch.tensor(1.5), "train/grad_norm": torch.tensor(2.5)}
    ratios = {
        "gate/incentive_removed": (torch.tensor(3.0), torch.tensor(6.0)),
        "gate/closed_fraction": (torch.tensor(1.0), torch.tensor(4.0)),
    }
    stats = pack_stats(values, ratios=ratios, episode_error=torch.tensor([7.0, 8.0]))
    assert dict(stats) == values
    assert len(stats) == 2
    assert stats.read() == {"train/loss": 1.5, "train/grad_norm": 2.5}
    assert stats.ratios == ratios
    assert stats.read_ratios() == {"gate/incentive_removed": (3.0, 6.0), "gate/closed_fraction": (1.0, 4.0)}
    assert stats.episode_error.tolist() == [7.0, 8.0]
    with pytest.raises(KeyError, match="gate/closed_fraction"):
        stats["gate/closed_fraction"]
    assert pack_stats(values).episode_error.tolist() == []
