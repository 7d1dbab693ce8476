"""Equations 7, 8 and 12, Proposition 1, and the rules for misses and terminal steps."""

import ast
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emtc_core.config.memory import GateConfig
from emtc_core.gate.gate import GateValues, delta_mem, evaluate_gate, gate_transitions
from emtc_core.gate_laws import gate_coefficient
from emtc_core.metrics import CLOSED_BELOW
from emtc_core.rollout.episode import Episode
from emtc_core.schedules import linear_decay
from tests.reference.gate import looped_gate


def _episode(reward: list[float], *, terminated: bool = True, truncated: bool = False) -> Episode:
    T = len(reward)
    return Episode(
        obs=np.zeros((T + 1, 1, 1), np.float32),
        state=np.zeros((T + 1, 1), np.float32),
        avail=np.ones((T + 1, 1, 1), bool),
        action=np.zeros((T, 1), np.int64),
        reward=np.array(reward, np.float32),
        terminated=terminated,
        truncated=truncated,
        won=False,
        episode_return=sum(reward),
    )


class _Values:
    """A memory of fixed values: slot i holds values[i]; links go to slot i + 2."""

    def __init__(self, values: list[float]) -> None:
        self.values = np.array(values)

    def recall(self, slots: np.ndarray) -> SimpleNamespace:
        return SimpleNamespace(h=np.where(slots >= 0, self.values[slots], np.nan))

    def successors(self, slots: np.ndarray) -> np.ndarray:
        return np.where((slots >= 0) & (slots + 2 < len(self.values)), slots + 2, -1)


def _judge(
    episode: Episode,
    slots: np.ndarray,
    values: _Values,
    config: GateConfig,
    *,
    gamma: float = 1.0,
    tau: float = 1.0,
    bootstrap_on_timeout: bool = False,
) -> GateValues:
    return evaluate_gate(
        episode,
        slots,
        values,
        config,
        gamma=gamma,
        tau=tau,
        bootstrap_on_timeout=bootstrap_on_timeout,
        is_empty=False,
    )


def test_two_steps_worked_out_by_hand() -> None:
    # r = (1, 2), gamma = 0.5, H = (3, 1, 5): delta_0 = |1 + 0.5·1 − 3| = 1.5; delta_1 = |2 + 0 − 1| = 1.
    verdict = _judge(_episode([1, 2]), np.arange(3), _Values([3.0, 1.0, 5.0]), GateConfig(), gamma=0.5, tau=1.0)
    assert verdict.h.tolist() == [3.0, 1.0]
    assert verdict.h_next.tolist() == [1.0, 0.0]
    assert verdict.delta_mem.tolist() == [1.5, 1.0]
    np.testing.assert_allclose(verdict.beta, [math.exp(-1.125), math.exp(-0.5)], rtol=1e-15)


def test_beta_is_one_at_zero_and_falls_to_exp_of_minus_half_at_tau() -> None:
    for tau in (0.3, 0.6, 1.2, 1.5):
        beta = gate_coefficient(np.array([0.0, tau]), tau=tau)
        np.testing.assert_allclose(beta, [1.0, math.exp(-0.5)], rtol=1e-15)


def test_beta_decreases_in_delta_and_increases_in_tau() -> None:
    delta = np.linspace(0, 5, 50)
    cool, warm = gate_coefficient(delta, tau=0.6), gate_coefficient(delta, tau=1.2)
    assert (np.diff(cool) < 0).all()
    assert (warm[1:] > cool[1:]).all()


def test_the_paper_table_of_beta_is_reproduced() -> None:
    np.testing.assert_allclose(gate_coefficient(np.array([0.5, 1, 2]), tau=0.6), [0.707, 0.249, 0.004], atol=5e-4)
    np.testing.assert_allclose(gate_coefficient(np.array([1.0, 3, 5]), tau=1.5), [0.801, 0.135, 0.004], atol=5e-4)


def test_tau_cools_linearly_and_then_stays() -> None:
    taus = [linear_decay(step, start=1.2, end=0.6, steps=1000) for step in (0, 500, 1000, 5000)]
    np.testing.assert_allclose(taus, [1.2, 0.9, 0.6, 0.6], rtol=1e-15)


def test_a_temperature_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\btau\b"):
        gate_coefficient(np.zeros(1), tau=0.0)


FLOATS = st.one_of(st.just(math.nan), st.floats(-50, 50))


@given(
    values=st.lists(FLOATS, min_size=2, max_size=9),
    reward=st.lists(st.floats(-5, 5, width=32), min_size=8, max_size=8),
    ends=st.booleans(),
    config=st.builds(
        GateConfig,
        enabled=st.booleans(),
        on_miss=st.sampled_from(["block", "pass", "nearest"]),
        terminal_value=st.sampled_from(["zero", "lookup"]),
        delta_scale=st.sampled_from([1.0, 0.01]),
    ),
)
def test_the_gate_agrees_with_the_looped_one(
    values: list[float], reward: list[float], ends: bool, config: GateConfig
) -> None:
    reward = reward[: len(values) - 1]
    episode = _episode(reward, terminated=ends, truncated=False)
    verdict = _judge(episode, np.arange(len(values)), _Values(values), config, gamma=0.97, tau=0.9)
    expected = looped_gate(reward, values, ends=ends, config=config, gamma=0.97, tau=0.9)
    for got, want in zip((verdict.h_next, verdict.delta_mem, verdict.beta), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)
    assert not np.isnan(verdict.beta).any()


def test_recorded_numbers_satisfy_the_equations_again_in_double_precision() -> None:
    rng = np.random.default_rng(3)
    reward = rng.normal(size=30).astype(np.float32)
    values = (rng.normal(size=31) * 1e3).tolist()
    verdict = _judge(_episode(reward.tolist()), np.arange(31), _Values(values), GateConfig(), gamma=0.99, tau=1.0)
    again = np.abs(reward.astype(np.float64) + 0.99 * verdict.h_next - verdict.h)
    np.testing.assert_array_equal(again, verdict.delta_mem)


@pytest.mark.parametrize(
    ("terminated", "truncated", "bootstrap", "last"),
    [(True, False, False, 0.0), (False, True, False, 0.0), (False, True, True, 7.0), (True, False, True, 0.0)],
)
def test_the_value_after_the_end_is_zero_unless_the_target_bootstraps_past_it(
    terminated: bool, truncated: bool, bootstrap: bool, last: float
) -> None:
    episode = _episode([1.0], terminated=terminated, truncated=truncated)
    verdict = _judge(episode, np.arange(2), _Values([1.0, 7.0]), GateConfig(), bootstrap_on_timeout=bootstrap)
    assert verdict.h_next.tolist() == [last]


def test_terminal_value_lookup_reads_the_terminal_node() -> None:
    config = GateConfig(terminal_value="lookup")
    verdict = _judge(_episode([1.0]), np.arange(2), _Values([1.0, 7.0]), config)
    assert verdict.h_next.tolist() == [7.0]


def test_successor_link_follows_the_stored_links() -> None:
    values, slots = _Values([4.0, 3.0, 2.0, 1.0]), np.arange(3)
    actual = _judge(_episode([0, 0]), slots, values, GateConfig())
    linked = _judge(_episode([0, 0]), slots, values, GateConfig(successor="link"))
    assert actual.h_next[0] == 3.0
    assert linked.h_next[0] == 2.0


def test_a_miss_blocks_or_passes_as_told() -> None:
    slots = np.array([0, -1, 1])
    episode, values = _episode([0, 0]), _Values([1.0, 2.0])
    blocked = _judge(episode, slots, values, GateConfig())
    passed = _judge(episode, slots, values, GateConfig(on_miss="pass"))
    assert blocked.beta.tolist() == [0.0, 0.0]
    assert passed.beta.tolist() == [1.0, 1.0]
    assert np.isnan(blocked.delta_mem).all()
    assert np.isnan(blocked.h_next[0])


def test_delta_scale_decouples_the_gate_from_the_reward_unit() -> None:
    args = (np.array([0.0]), np.array([100.0]), np.array([0.0]))
    _, plain = gate_transitions(*args, is_empty=False, config=GateConfig(), gamma=1.0, tau=1.0)
    delta, in_goals = gate_transitions(*args, is_empty=False, config=GateConfig(delta_scale=0.01), gamma=1.0, tau=1.0)
    assert delta[0] == 100.0
    assert plain[0] == 0.0
    assert in_goals[0] == pytest.approx(math.exp(-0.5))


def test_a_gate_that_is_off_lets_everything_pass() -> None:
    args = (np.zeros(2), np.array([100.0, np.nan]), np.zeros(2))
    _, beta = gate_transitions(*args, is_empty=False, config=GateConfig(enabled=False), gamma=1.0, tau=1.0)
    assert beta.tolist() == [1.0, 1.0]


def test_proposition_1_holds_in_both_directions_on_random_finite_problems() -> None:
    rng = np.random.default_rng(1)
    for _ in range(2000):
        gamma, n = rng.uniform(0, 1), 8
        v_star = rng.normal(size=n) * 5  # of the stored places and the others alike
        stored = rng.choice(n, size=3, replace=False)
        nearest = rng.choice(stored, size=n)  # any retrieval whatsoever
        h = np.full(n, np.nan)
        h[stored] = v_star[stored] + rng.normal(size=3)
        eps_rep = np.abs(v_star - v_star[nearest]).max()
        eps_store = np.abs(h[stored] - v_star[stored]).max()
        alpha = (1 + gamma) * (eps_rep + eps_store)
        s, s_next, r = rng.integers(n), rng.integers(n), rng.normal()
        in_memory = delta_mem(r, h[nearest[s]], h[nearest[s_next]], gamma=gamma)
        optimal = delta_mem(r, v_star[s], v_star[s_next], gamma=gamma)
        assert abs(in_memory - optimal) <= alpha + 1e-12


def test_a_lipschitz_value_bounds_the_representation_error_by_the_radius() -> None:
    rng = np.random.default_rng(2)
    lipschitz, delta = 3.0, 0.2
    stored = rng.normal(size=(500, 4))
    query = stored[rng.integers(500, size=300)] + rng.uniform(-0.5, 0.5, (300, 4)) * delta / 2
    gap = np.linalg.norm(query[:, None] - stored[None], axis=2)
    near = gap.min(axis=1) < delta
    v_query, v_stored = (lipschitz * np.linalg.norm(x, axis=1) for x in (query, stored))
    error = np.abs(v_query - v_stored[gap.argmin(axis=1)])
    assert near.any()
    assert (error[near] <= lipschitz * delta).all()


def test_product_code_compares_beta_with_one_constant() -> None:
    """A migration keeps the number that it was written with."""
    root = Path(__file__).parents[2]
    files = [file for package in ("app", "emtc_core", "pages", "storage") for file in (root / package).rglob("*.py")]
    literal = [
        f"{file.relative_to(root)}:{node.lineno}"
        for file in files
        if "versions" not in file.parts
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Compare)
        and any(isinstance(each, ast.Constant) and each.value == CLOSED_BELOW for each in ast.walk(node))
        and any(word in ast.unparse(node) for word in ("beta", "gate <", "gate >"))
    ]
    assert literal == []
