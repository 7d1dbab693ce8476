"""Eq. 12, the adaptive schedule, and the unit of both."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from emtc_core.config.memory import GateConfig
from emtc_core.gate import temperature as temperature_module
from emtc_core.gate.temperature import Temperature
from emtc_core.gate_laws import gate_coefficient
from tests.errors import raises

NOTHING = np.zeros(0)


def test_the_linear_schedule_is_equation_12_whatever_was_observed() -> None:
    temperature = Temperature(GateConfig(), t_max=2000)
    temperature.observe(np.full(50, 100.0), np.arange(50.0))
    np.testing.assert_allclose([temperature.at(s) for s in (0, 500, 1000, 5000)], [1.2, 0.9, 0.6, 0.6])


def test_the_adaptive_schedule_is_the_quantile_between_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temperature_module, "QUANTILE", 0.5)
    monkeypatch.setattr(temperature_module, "WINDOW", 100)
    temperature = Temperature(GateConfig(schedule="adaptive"), t_max=1)
    assert temperature.at(0) == 1.2
    temperature.observe(np.array([0.7, 0.8, 0.9, np.nan]), np.zeros(4))
    assert temperature.at(3) == pytest.approx(0.8)
    temperature.observe(np.full(97, 9.0), np.zeros(97))
    assert temperature.at(100) == 1.2
    temperature.observe(np.zeros(100), np.zeros(100))  # pushes everything older out of the window
    assert temperature.at(200) == 0.6


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=40), st.sampled_from(["return", "spread"]))
def test_beta_tends_to_1_as_delta_tends_to_0_whatever_was_observed(errors: list[float], unit: str) -> None:
    gate = GateConfig(schedule="adaptive", tau_unit=unit)
    temperature = Temperature(gate, t_max=1)
    temperature.observe(np.array(errors), np.linspace(0, 1, len(errors)))
    tau = temperature.at(7)
    deltas = np.array([1e-1, 1e-3, 1e-6, 0.0]) * tau
    betas = gate_coefficient(deltas, tau=tau)
    assert (np.diff(betas) >= 0).all()
    assert betas[-1] == 1.0
    assert (betas >= 1 - (deltas / tau) ** 2).all()


@given(st.floats(1e-3, 1e4), st.sampled_from(["linear", "adaptive"]))
def test_measured_in_spreads_the_gates_do_not_depend_on_the_scale_of_rewards(scale: float, schedule: str) -> None:
    rng = np.random.default_rng(0)
    delta, returns = rng.exponential(size=200), rng.normal(size=200)
    betas = []
    for factor in (1.0, scale):
        temperature = Temperature(GateConfig(schedule=schedule, tau_unit="spread"), t_max=100)
        temperature.observe(factor * delta, factor * returns)
        betas.append(gate_coefficient(factor * delta, tau=temperature.at(30)))
    np.testing.assert_allclose(*betas, rtol=1e-6)


def test_equal_returns_do_not_change_the_unit() -> None:
    temperature = Temperature(GateConfig(tau_unit="spread"), t_max=100)
    temperature.observe(np.zeros(5), np.full(5, 3.0))
    assert temperature.at(0) == 1.2


@pytest.mark.parametrize("gate", [GateConfig(schedule="adaptive"), GateConfig(tau_unit="spread")])
def test_a_restored_temperature_continues_exactly(gate: GateConfig) -> None:
    rng = np.random.default_rng(1)
    whole, second = Temperature(gate, t_max=100), Temperature(gate, t_max=100)
    whole.observe(rng.exponential(size=300), rng.normal(size=300))
    second.set_state(whole.get_state())
    more = rng.exponential(size=50), rng.normal(size=50)
    for temperature in (whole, second):
        temperature.observe(*more)
    assert whole.at(60) == second.at(60)


def test_a_gate_before_the_write_cannot_read_the_written_nodes() -> None:
    with raises(ValidationError, key="gate.lookup", value="written", related=("gate.timing",)):
        GateConfig(lookup="written", timing="before_write")
