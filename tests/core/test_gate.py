"""Equations 7 and 8, and the rules for misses and terminal steps. Tests of propositions are in `test_propositions`."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emtc_core.config.memory import GateConfig
from emtc_core.gate.gate import GateValues, evaluate_gate
from emtc_core.gate_laws import gate_coefficient
from emtc_core.rollout.episode import Episode
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
    """A memory of fixed values: slot i has values[i]; its successor is slot i + 2."""

    def __init__(self, values: list[float]) -> None:
        self.values = np.array(values)

    def recall(self, slots: np.ndarray) -> SimpleNamespace:
        return SimpleNamespace(h=np.where(slots >= 0, self.values[slots], np.nan))

    def successors(self, slots: np.ndarray) -> np.ndarray:
        return np.where((slots >= 0) & (slots + 2 < len(self.values)), slots + 2, -1)


def _evaluate(
    episode: Episode,
    values: list[float],
    config: GateConfig,
    *,
    gamma: float = 1.0,
    tau: float = 1.0,
    bootstrap_on_timeout: bool = False,
    is_empty: bool = False,
) -> GateValues:
    return evaluate_gate(
        episode,
        np.arange(episode.length + 1),
        _Values(values),
        config,
        gamma=gamma,
        tau=tau,
        bootstrap_on_timeout=bootstrap_on_timeout,
        is_empty=is_empty,
    )


@pytest.mark.parametrize(
    ("tau", "delta", "beta"),
    [(0.6, [0, 0.5, 1, 2], [1, 0.707, 0.249, 0.004]), (1.5, [0, 1, 3, 5], [1, 0.801, 0.135, 0.004])],
)
def test_the_table_of_beta_in_the_paper_is_reproduced(tau: float, delta: list[float], beta: list[float]) -> None:
    np.testing.assert_allclose(gate_coefficient(np.array(delta), tau=tau), beta, atol=5e-4)


def test_a_temperature_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\btau\b"):
        gate_coefficient(np.zeros(1), tau=0.0)


RULES = st.sampled_from(["block", "pass"])


@given(
    values=st.lists(st.one_of(st.just(math.nan), st.floats(-50, 50)), min_size=2, max_size=9),
    reward=st.lists(st.floats(-5, 5, width=32), min_size=8, max_size=8),
    ends=st.booleans(),
    is_empty=st.booleans(),
    config=st.builds(
        GateConfig,
        enabled=st.booleans(),
        on_miss=RULES | st.just("nearest"),
        on_empty=RULES,
        terminal_value=st.sampled_from(["zero", "lookup"]),
        delta_scale=st.sampled_from([1.0, 0.01]),
    ),
)
def test_the_gate_equals_the_looped_one(
    values: list[float], reward: list[float], ends: bool, is_empty: bool, config: GateConfig
) -> None:
    reward = reward[: len(values) - 1]
    gate = _evaluate(_episode(reward, terminated=ends), values, config, gamma=0.97, tau=0.9, is_empty=is_empty)
    h_next, delta, beta = looped_gate(reward, values, ends=ends, is_empty=is_empty, config=config, gamma=0.97, tau=0.9)
    np.testing.assert_array_equal(gate.h, values[:-1])
    np.testing.assert_array_equal(gate.h_next, h_next)
    np.testing.assert_allclose(gate.delta_mem, delta, rtol=1e-12)
    np.testing.assert_allclose(gate.beta, beta, rtol=1e-12)


@pytest.mark.parametrize(
    ("terminated", "bootstrap", "terminal_value", "last"),
    [
        (True, False, "zero", 0.0),
        (False, False, "zero", 0.0),
        (False, True, "zero", 7.0),
        (True, True, "zero", 0.0),
        (True, False, "lookup", 7.0),
    ],
)
def test_the_value_after_the_end_is_zero_unless_the_target_bootstraps_or_the_terminal_node_is_read(
    terminated: bool, bootstrap: bool, terminal_value: str, last: float
) -> None:
    episode = _episode([1.0], terminated=terminated, truncated=not terminated)
    config = GateConfig(terminal_value=terminal_value)
    gate = _evaluate(episode, [1.0, 7.0], config, bootstrap_on_timeout=bootstrap)
    assert gate.h_next.tolist() == [last]


@pytest.mark.parametrize(("successor", "h_next"), [("nn", [3.0, 0.0]), ("link", [2.0, 0.0])])
def test_the_next_value_is_that_of_the_next_state_or_of_the_stored_link(successor: str, h_next: list[float]) -> None:
    gate = _evaluate(_episode([0, 0]), [4.0, 3.0, 2.0, 1.0], GateConfig(successor=successor))
    assert gate.h_next.tolist() == h_next
