"""Built-in gate laws: beta as a function of delta and tau, and the inverse for tau.

To add a law, write its two functions and add them to `GATE_LAWS`: `gate.type` then accepts its name. `gate.laws` calls
the functions with the settings of a run.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Law(NamedTuple):
    """The functions of one gate law.

    Source: Eq. 8 for the Gaussian law; other laws are variants of it.
    """

    beta: Callable[[Any, Any, Any], Any]
    """(delta [return], tau [return], context) → beta in [0, 1], with delta after `gate.delta_scale` and the context of
    `gate.laws`. All have the same shape."""
    temperature: Callable[[Floats, Floats], Floats] | None = None
    """(beta, delta [return]) → tau [return], same shape; None if the law has no inverse."""


def gate_coefficient(delta_mem: Any, *, tau: Any, scale: float = 1.0) -> Any:
    """Compute the Gaussian gate coefficient beta = exp(-(scale delta_mem)^2 / (2 tau^2)) (Eq. 8).

    Args:
        delta_mem: Temporal-consistency error, any shape, >= 0 [return].
        tau: Gate temperature, > 0, a number or an array that broadcasts with `delta_mem` [return].
        scale: Factor on `delta_mem` (`gate.delta_scale`).

    Returns:
        beta, same shape, in [0, 1]; 1 where delta_mem is 0.

    Raises:
        ValueError: If tau is not positive.
    """
    if np.any(np.asarray(tau) <= 0):
        raise ValueError(f"tau must be positive, got {np.min(tau)}")
    return np.exp(-((scale * delta_mem) ** 2) / (2.0 * tau * tau))


def gaussian_temperature(beta: Floats, delta: Floats) -> Floats:
    """Compute tau = delta / sqrt(-2 ln beta), the inverse of `gate_coefficient` (Eq. 8 solved for tau).

    Args:
        beta: Gate coefficient, any shape, in (0, 1), dimensionless.
        delta: Temporal-consistency error after `gate.delta_scale`, same shape, > 0 [return].

    Returns:
        tau, same shape [return].
    """
    return delta / np.sqrt(-2.0 * np.log(beta))


def _gaussian_beta(delta: Any, tau: Any, context: Any) -> Any:
    return gate_coefficient(delta, tau=tau)


GATE_LAWS: Final = {
    "gaussian": Law(_gaussian_beta, gaussian_temperature),
}
"""Name of a built-in gate law (`gate.type`) → its functions."""
