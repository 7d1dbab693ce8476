"""Equation 2, its variants, and Proposition 2 by automatic differentiation."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emtc_core.config.memory import IncentiveConfig
from emtc_core.gate.incentive import compute_incentive_inputs, incentive, success_ratio
from emtc_core.gate_laws import gate_coefficient


def _recall(n_xi: list[int], n_call: list[int], xi: list[bool], hit: list[bool]) -> SimpleNamespace:
    h = np.where(hit, 10.0, np.nan)
    return SimpleNamespace(h=h, n_xi=np.array(n_xi), n_call=np.array(n_call), xi=np.array(xi), hit=np.array(hit))


def test_two_steps_worked_out_by_hand() -> None:
    # gamma rho (H - Q): 0.5 · 1/2 · (4 - 2) = 0.5 and 0.5 · 1 · (1 - 3) = -1.
    h, q, rho = np.array([4.0, 1.0]), np.array([2.0, 3.0]), np.array([0.5, 1.0])
    assert incentive(h, q, rho, gamma=0.5).tolist() == [0.5, -1.0]
    assert incentive(h, q, rho, gamma=0.5, clamp="positive").tolist() == [0.5, 0.0]
    small = incentive(np.array([2.25]), np.array([2.0]), np.array([1.0]), gamma=0.5, clamp="positive")
    assert small.tolist() == [0.125]


def test_success_ratio_counts_and_a_node_never_called_gives_zero() -> None:
    n_xi, n_call = np.array([0.0, 1, 3]), np.array([0.0, 2, 3])
    assert success_ratio(n_xi, n_call).tolist() == [0.0, 0.5, 1.0]
    np.testing.assert_allclose(success_ratio(n_xi, n_call, eps=1e-3), [0, 1 / 2.001, 3 / 3.001], rtol=1e-15)
    assert success_ratio(np.array([1]), np.array([4])).item() == 0.25


def test_the_flag_type_uses_the_node_flag_instead_of_the_counts() -> None:
    recall = _recall([1, 0], [4, 2], [True, False], [True, True])
    going_on = np.array([False, False])
    assert compute_incentive_inputs(recall, going_on, IncentiveConfig())[1].tolist() == [0.25, 0.0]
    assert compute_incentive_inputs(recall, going_on, IncentiveConfig(type="flag"))[1].tolist() == [1.0, 0.0]


def test_the_ratio_eps_of_the_published_code_is_an_option() -> None:
    recall = _recall([1], [1], [True], [True])
    rho = compute_incentive_inputs(recall, np.array([False]), IncentiveConfig(ratio_eps=0.001))[1]
    assert rho[0] == pytest.approx(1 / 1.001)


def test_terminal_steps_are_masked_unless_told_otherwise() -> None:
    recall = _recall([1], [1], [True], [True])
    ended = np.array([True])
    assert compute_incentive_inputs(recall, ended, IncentiveConfig())[1].tolist() == [0.0]
    assert compute_incentive_inputs(recall, ended, IncentiveConfig(mask_terminal=False))[1].tolist() == [1.0]


def test_a_miss_gives_finite_zeros() -> None:
    recall = _recall([0], [0], [False], [False])
    h_next, rho = compute_incentive_inputs(recall, np.array([False]), IncentiveConfig(ratio_eps=0.001))
    assert (h_next.tolist(), rho.tolist()) == ([0.0], [0.0])


def test_what_a_missing_node_seems_to_hold_counts_for_nothing_even_at_the_end() -> None:
    recall = _recall([1, 1], [1, 1], [True, True], [False, False])
    assert compute_incentive_inputs(recall, np.array([False, True]), IncentiveConfig())[1].tolist() == [0.0, 0.0]


@given(
    r=st.floats(-10, 10),
    h=st.floats(-30, 30),
    q=st.floats(-30, 30),
    rho=st.floats(0, 1),
    beta=st.floats(0, 1),
    gamma=st.floats(0, 1),
)
def test_the_gated_target_moves_the_bootstrap_towards_the_memory(
    r: float, h: float, q: float, rho: float, beta: float, gamma: float
) -> None:
    target = r + beta * incentive(np.array(h), np.array(q), np.array(rho), gamma=gamma) + gamma * q
    convex = r + gamma * ((1 - beta * rho) * q + beta * rho * h)
    assert float(target) == pytest.approx(convex, abs=1e-9)


def _gradients(clamp: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of L^beta with H = V*, rho = 1, delta_mem = 0, and of L*, for arbitrary target values."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(64, 5, dtype=torch.float64, generator=generator)
    r, v_star, q_target = torch.randn(3, 64, dtype=torch.float64, generator=generator)
    gradients = []
    for use_incentive in (True, False):
        theta = torch.ones(5, dtype=torch.float64, requires_grad=True)
        q_tot = torch.tanh(features @ theta)
        beta = gate_coefficient(torch.zeros(64, dtype=torch.float64), tau=0.6)
        r_p = incentive(v_star, q_target, torch.ones(64, dtype=torch.float64), gamma=0.99, clamp=clamp)  # type: ignore[arg-type]
        target = r + beta * r_p + 0.99 * q_target if use_incentive else r + 0.99 * v_star
        ((target - q_tot) ** 2).sum().backward()
        assert theta.grad is not None
        gradients.append(theta.grad.clone())
    return gradients[0], gradients[1], q_target - v_star


def test_proposition_2_the_two_gradients_agree_for_any_target_network() -> None:
    with_incentive, optimal, _ = _gradients("none")
    torch.testing.assert_close(with_incentive, optimal, rtol=1e-12, atol=1e-12)


def test_proposition_2_fails_with_the_clamp_where_the_bootstrap_exceeds_the_memory() -> None:
    with_incentive, optimal, excess = _gradients("positive")
    assert (excess > 0).any()
    assert (with_incentive - optimal).abs().max() > 0.1


def test_gradients_pass_through_the_incentive() -> None:
    q = torch.tensor([1.0], requires_grad=True)
    incentive(torch.tensor([3.0]), q, torch.tensor([0.5]), gamma=0.9).sum().backward()
    assert q.grad is not None
    assert q.grad.item() == pytest.approx(-0.45)
