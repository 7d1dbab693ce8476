"""Equation 2 and its variants. Proposition 2 is tested on the learner in `test_learner_proposition`."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emtc_core.config.memory import IncentiveConfig
from emtc_core.gate.incentive import compute_incentive_inputs, incentive, success_ratio


@pytest.mark.parametrize(("clamp", "expected"), [("none", [0.5, -1.0, 0.125]), ("positive", [0.5, 0.0, 0.125])])
def test_the_incentive_of_three_steps_is_that_of_equation_2(clamp: Any, expected: list[float]) -> None:
    # gamma rho (H - Q): 0.5 · 1/2 · (4 - 2) = 0.5, 0.5 · 1 · (1 - 3) = -1 and 0.5 · 1 · (2.25 - 2) = 0.125.
    h, q, rho = np.array([4.0, 1.0, 2.25]), np.array([2.0, 3.0, 2.0]), np.array([0.5, 1.0, 1.0])
    assert incentive(h, q, rho, gamma=0.5, clamp=clamp).tolist() == expected


@pytest.mark.parametrize(
    ("eps", "expected"), [({}, [0.0, 0.5, 1.0, 0.25]), ({"eps": 1e-3}, [0.0, 1 / 2.001, 3 / 3.001, 1 / 4.001])]
)
def test_the_success_ratio_is_zero_for_a_node_that_was_never_visited(
    eps: dict[str, float], expected: list[float]
) -> None:
    n_xi, n_call = np.array([0.0, 1, 3, 1]), np.array([0.0, 2, 3, 4])
    np.testing.assert_allclose(success_ratio(n_xi, n_call, **eps), expected, rtol=1e-15)


NODE = st.tuples(st.floats(-30, 30), st.integers(0, 9), st.integers(1, 9), st.booleans(), st.booleans(), st.booleans())


@given(
    nodes=st.lists(NODE, min_size=1, max_size=6),
    config=st.builds(
        IncentiveConfig,
        type=st.sampled_from(["ratio", "flag"]),
        ratio_eps=st.sampled_from([0.0, 0.001]),
        mask_terminal=st.booleans(),
    ),
)
def test_a_miss_and_a_masked_terminal_step_have_no_incentive_and_other_steps_have_the_ratio_of_their_node(
    nodes: list[tuple[float, int, int, bool, bool, bool]], config: IncentiveConfig
) -> None:
    h, n_xi, n_call, xi, hit, terminated = (np.array(column) for column in zip(*nodes, strict=True))
    recall = SimpleNamespace(h=np.where(hit, h, np.nan), n_xi=n_xi, n_call=n_call, xi=xi, hit=hit)
    h_next, rho = compute_incentive_inputs(recall, terminated, config)
    for k, (value, successes, calls, flag, found, ended) in enumerate(nodes):
        ratio = float(flag) if config.type == "flag" else successes / (calls + config.ratio_eps)
        is_blocked = not found or (ended and config.mask_terminal)
        assert h_next[k] == (value if found else 0.0), k
        assert rho[k] == (0.0 if is_blocked else ratio), k
