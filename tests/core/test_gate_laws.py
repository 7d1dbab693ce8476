"""Each gate law returns beta in [0, 1], and its inverse returns the temperature from which beta was computed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emtc_core.gate_laws import GATE_LAWS, INVERTIBLE, unknown_context

CONTEXT = unknown_context((1,))


@pytest.mark.parametrize("name", GATE_LAWS)
@given(delta=st.floats(0, 1e3), tau=st.floats(1e-3, 1e3))
def test_beta_is_in_its_range_and_never_rises_with_delta(name: str, delta: float, tau: float) -> None:
    law = GATE_LAWS[name]
    at_zero, near, far = (law.weigh(np.array([x]), tau, CONTEXT)[0] for x in (0.0, delta, 1.1 * delta))
    assert at_zero == 1
    assert 0 <= far <= near <= 1


@pytest.mark.parametrize("name", [name for name, law in GATE_LAWS.items() if law.is_invertible])
@given(beta=st.floats(*INVERTIBLE), delta=st.floats(1e-6, 1e3))
def test_the_inverse_returns_the_tau_of_a_beta(name: str, beta: float, delta: float) -> None:
    law = GATE_LAWS[name]
    tau = law.temperature_for(np.array([beta]), np.array([delta]))
    assert law.weigh(np.array([delta]), tau, CONTEXT)[0] == pytest.approx(beta, rel=1e-9)
