"""Losses and shares of a batch by numbers worked out by hand."""

import numpy as np
import pytest
import torch

from emtc_core.learner.targets import (
    UNAVAILABLE_Q,
    Incentive,
    IncentiveInputs,
    episodic_control_error,
    episodic_incentive,
    gate_ratios,
    greedy,
    make_incentive_inputs,
    masked_mean,
    quantile_huber,
)


def test_the_share_that_the_gate_removed_counts_real_transitions_and_sizes_not_signs():
    # removed: |3 - 1.5| + |-2 - 0| = 3.5 of |3| + |-2| + |1| = 6; the last transition is padding.
    r_p = torch.tensor([[3.0, -2.0], [1.0, 50.0]])
    beta = torch.tensor([[0.5, 0.0], [1.0, 0.0]])
    mask = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    shares = gate_ratios(Incentive(r_p=r_p, gated=beta * r_p), beta, mask)
    assert {name: [float(x) for x in pair] for name, pair in shares.items()} == {
        "gate/incentive_removed": [3.5, 6.0],
        "gate/closed_fraction": [1.0, 3.0],
    }


def test_a_half_open_gate_is_not_closed():
    beta, one = torch.tensor([[0.1, 0.49, 0.5, 0.51]]), torch.ones(1, 4)
    closed, whole = gate_ratios(Incentive(r_p=one, gated=one), beta, one)["gate/closed_fraction"]
    assert (float(closed), float(whole)) == (2.0, 4.0)


def test_quantiles_are_pulled_up_by_their_fraction_and_down_by_the_rest():
    # One fraction w = 0.25; errors 0.5 (above: weight w, half of its square) and -3 (below: weight 1 - w, size - 1/2).
    fractions, quantiles = torch.tensor([[[0.25]]]), torch.tensor([[[1.0]]])
    loss = quantile_huber(quantiles, fractions, torch.tensor([[[1.5, -2.0]]]))
    assert loss.item() == pytest.approx((0.25 * 0.125 + 0.75 * 2.5) / 2)


def test_the_two_pieces_of_the_quantile_loss_meet_at_one_and_its_weight_turns_at_zero():
    fractions, quantiles = torch.tensor([[[0.25]]]), torch.tensor([[[0.0]]], requires_grad=True)
    at_one = quantile_huber(quantiles, fractions, torch.tensor([[[1.0]]]))
    assert at_one.item() == pytest.approx(0.25 * 0.5)
    assert torch.autograd.grad(at_one.sum(), quantiles)[0].item() == pytest.approx(-0.25)
    several = quantile_huber(torch.zeros(1, 1, 2), torch.tensor([[[0.25, 0.5]]]), torch.tensor([[[2.0, 2.0]]]))
    assert several.item() == pytest.approx((0.25 + 0.5) * 1.5), "summed over fractions, a mean over targets"


def test_means_leave_padding_out_and_an_empty_batch_is_zero():
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


def test_what_a_miss_recalls_is_zero():
    missing = np.array([[np.nan, 2.0]])
    inputs = make_incentive_inputs(missing, missing, np.array([[False, True]]))
    assert inputs.h_next.tolist() == inputs.rho_next.tolist() == [[0.0, 2.0]]
    assert inputs.hit.tolist() == [[False, True]]
    assert inputs.h_next.dtype == inputs.rho_next.dtype == torch.float32


@pytest.mark.parametrize(("mask_terminal", "last"), [(True, 0.0), (False, -0.5)])
def test_the_incentive_is_weighed_by_the_gate_and_may_stop_at_the_end(mask_terminal: bool, last: float):
    recalled = IncentiveInputs(torch.tensor([[4.0, 1.0]]), torch.tensor([[0.5, 1.0]]), torch.tensor([[True, True]]))
    got = episodic_incentive(
        recalled,
        torch.tensor([[2.0], [2.0]]),
        beta=torch.tensor([[0.5], [1.0]]),
        terminated=torch.tensor([[0.0], [1.0]]),
        gamma=0.5,
        clamp="none",
        mask_terminal=mask_terminal,
    )
    assert got.r_p.tolist() == [[0.5], [last]]
    assert got.gated.tolist() == [[0.25], [last]]


def test_the_episodic_error_bootstraps_from_the_memory_where_it_found_a_node():
    recalled = IncentiveInputs(torch.tensor([[4.0, 4.0, 4.0]]), torch.ones(1, 3), torch.tensor([[True, False, True]]))
    error = episodic_control_error(
        torch.full((3, 1), 0.5),
        recalled,
        reward=torch.ones(3, 1),
        terminated=torch.tensor([[0.0], [0.0], [1.0]]),
        gamma=0.5,
    )
    assert error.flatten().tolist() == [2.5, 0.0, 0.5]
