"""Propositions 1 and 2 on tasks whose V* is known; value iteration against a linear solve."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emtc_core.gate.propositions import (
    GridTask,
    Proposition2,
    check_proposition_1,
    check_proposition_2,
    evaluate_random_policy,
    look_ahead,
    make_memory,
    make_task,
    sample_transitions,
    solve,
)

SEEDS = st.integers(0, 10_000)
GAMMAS = st.floats(0.0, 0.99)
SLIPS = st.sampled_from([0.0, 0.1, 0.5])


def value_of_policy(task: GridTask, action: np.ndarray) -> np.ndarray:
    """The value of a deterministic policy, by a linear solve."""
    S = len(task.reward)
    chosen = task.transition[action, np.arange(S)]
    return np.linalg.solve(np.eye(S) - task.gamma * chosen, chosen @ task.reward)


def compare_gradients(seed: int, *, gamma: float = 0.99, target_error: float = 1.0, **choice: str) -> Proposition2:
    task = make_task(gamma=gamma, seed=seed, side=6)
    solution = solve(task)
    behavior = "random" if choice.get("behavior") == "random" else "greedy"
    clamp = "positive" if choice.get("clamp") == "positive" else "none"
    sampled = sample_transitions(task, solution, behavior=behavior, n=200, seed=seed)
    mix = np.array([0.0, 0.5, 0.9, 1.0])
    return check_proposition_2(
        task, solution, sampled, mix=mix, tau=1.2, target_error=target_error, clamp=clamp, seed=seed
    )


@settings(max_examples=30, deadline=None)
@given(SEEDS, GAMMAS, SLIPS)
def test_value_iteration_equals_a_linear_solve_and_no_action_is_better(seed, gamma, slip):
    task = make_task(gamma=gamma, seed=seed, side=5, slip=slip)
    solution = solve(task)
    np.testing.assert_allclose(solution.v, value_of_policy(task, solution.q.argmax(axis=0)), atol=1e-8)
    np.testing.assert_allclose(look_ahead(task, solution.v).max(axis=0), solution.v, atol=1e-8)
    assert (evaluate_random_policy(task) <= solution.v + 1e-8).all()


@settings(max_examples=60, deadline=None)
@given(SEEDS, GAMMAS, SLIPS, st.floats(0, 10), st.floats(1, 6))
def test_delta_mem_stays_within_alpha_of_delta_opt_on_both_sides(seed, gamma, slip, noise, delta):
    task = make_task(gamma=gamma, seed=seed, side=6, slip=slip)
    solution = solve(task)
    memory = make_memory(task, solution.v, delta=delta, noise=noise, seed=seed)
    sampled = sample_transitions(task, solution, behavior="random", n=200, seed=seed)
    result = check_proposition_1(task, solution.v, memory, sampled, delta=delta)
    assert result.share_below == 1
    assert result.share_inside == 1
    assert result.largest_difference <= result.alpha + 1e-9
    assert result.eps_rep <= result.lipschitz_bound + 1e-9
    assert result.eps_store <= noise
    distance = np.linalg.norm(task.position - task.position[memory.retrieved], axis=1)
    assert distance[~task.terminal].max() < delta


def test_the_bound_alpha_is_nearly_reached():
    """By steps between a state whose H is too high and one whose H is too low."""
    task = make_task(gamma=0.9, seed=0, side=6)
    solution = solve(task)
    memory = make_memory(task, solution.v, delta=1.0, noise=1.0, seed=0)
    sampled = sample_transitions(task, solution, behavior="random", n=5000, seed=0)
    result = check_proposition_1(task, solution.v, memory, sampled, delta=1.0)
    assert result.eps_rep == 0
    assert 0.8 * result.alpha < result.largest_difference <= result.alpha


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.floats(0.1, 0.99), st.floats(0, 5))
def test_gradients_agree_at_v_star_for_any_target_network_and_differ_before(seed, gamma, target_error):
    result = compare_gradients(seed, gamma=gamma, target_error=target_error)
    assert result.distance[-1] == 0
    assert result.gradient_error[-1] < 1e-8
    assert result.beta_mean[-1] == pytest.approx(1)
    assert (result.gradient_error[:-1] > 1e-6).all()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("target_error", [0.0, 1.0])
def test_with_the_clamp_gradients_differ_where_the_target_network_overestimates(seed, target_error):
    result = compare_gradients(seed, clamp="positive", target_error=target_error)
    assert (result.share_overestimated > 0) == (target_error > 0)
    if target_error:
        assert result.gradient_error[-1] > 1e-3
    else:
        assert result.gradient_error[-1] < 1e-8


def test_the_gate_does_not_open_for_actions_that_are_not_optimal():
    result = compare_gradients(1, behavior="random")
    assert result.beta_mean[-1] < 1
    assert result.gradient_error[-1] > 1e-4


def test_sampling_follows_the_transition_probabilities_and_never_starts_at_the_goal():
    task = make_task(gamma=0.9, seed=5, side=2, slip=0.4)
    solution = solve(task)
    sampled = sample_transitions(task, solution, behavior="random", n=40_000, seed=5)
    assert not task.terminal[sampled.state].any()
    np.testing.assert_array_equal(sampled.terminated, task.terminal[sampled.next_state])
    s = int(np.flatnonzero(~task.terminal)[0])
    here = (sampled.state == s) & (sampled.action == 0)
    frequency = np.bincount(sampled.next_state[here], minlength=4) / here.sum()
    np.testing.assert_allclose(frequency, task.transition[0, s], atol=0.03)
